"""The functions of a script: the model's folder, inputs, what the cache should hold, and plain attention in float64."""

from __future__ import annotations

from .needs import FP8, has_drafter_model
from .plan import Plan
from .setup_lines import config_json


def functions(plan: Plan) -> list[list[str]]:
    """The functions that the script needs, each as its lines, in the order in which they are first called."""
    found = [_model(plan)] if has_drafter_model(plan) else []
    if plan.reaches("forward") and plan.needles:
        found += _needles(plan)
    if plan.reaches("compare"):
        found += [_rounded()] if plan.cell.kv_cache_dtype in FP8 else []
        found.append(_attention(plan))
    return found


def _model(plan: Plan) -> list[str]:
    """Writes the config.json of a one-layer model of the cell's geometry, or of its drafter."""
    return [
        "def model(**more):",
        *(f"    {line}" for line in config_json(plan)),
        "    folder = tempfile.mkdtemp()",
        '    with open(f"{folder}/config.json", "w") as file:',
        "        json.dump(llama | more, file)",
        "    return folder",
    ]


def _needles(plan: Plan) -> list[list[str]]:
    """Each query's key is drawn from those that it may read, the first and the last among them."""
    g = plan.cell.geometry
    first = "max(0, at - WINDOW + 1)" if g.sliding_window is not None else "0"
    last = "at"
    if not g.causal:
        last = "min(len(keys), at + WINDOW) - 1" if g.sliding_window is not None else "len(keys) - 1"
    signs = [
        "def signs(tokens):",
        "    return (torch.randint(0, 2, (tokens, KV_HEADS, SIZE)) * 2 - 1).to(device, DTYPE)",
    ]
    pointing = [
        "def pointing(keys, new):",
        '    """Queries of the last ``new`` tokens: each head points at one key that it may read."""',
        "    rows = []",
        f"    for {'at' if 'at' in first + last else '_'} in range(len(keys) - new, len(keys)):",
        f"        first, last = {first}, {last}",
        "        pick = torch.randint(first, last + 1, (HEADS,))",
        "        pick[0], pick[-1] = last, first",
        "        rows.append(16 * keys[pick, torch.arange(HEADS) // (HEADS // KV_HEADS)])",
        "    return torch.stack(rows)",
    ]
    return [signs, pointing]


def _rounded() -> list[str]:
    return [
        "def rounded(x, scale):",
        '    """``x`` in float64 as FP8 holds it."""',
        "    largest = torch.finfo(FP8).max",
        "    return (x.float() / scale).clamp(-largest, largest).to(FP8).double() * scale",
    ]


def _attention(plan: Plan) -> list[str]:
    """Attention in float64 with a bound of each row's error: a budget of unit roundoffs, looser than a record's."""
    g = plan.cell.geometry
    out = [
        "def attention(q, k, v):",
        '    """Attention of one request in float64, and how large the error of each row may be."""',
        "    q, k, v = q.double(), *(x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))",
        '    logits = torch.einsum("qhd,khd->hqk", q, k) * SIZE**-0.5',
    ]
    if g.logits_soft_cap is not None:
        out.append("    logits = SOFT_CAP * torch.tanh(logits / SOFT_CAP)")
    out += _mask(plan)
    if g.sinks:
        out.append("    logits = torch.cat((logits, sinks.double()[:, None, None].expand(-1, len(q), -1)), -1)")
    out += [
        "    weight = torch.softmax(logits, -1)",
        "    # The error that rounding may make: of each weight, and of the output; five standard deviations.",
        *_slack(plan),
    ]
    if g.sinks:
        out.append("    weight, slack = weight[..., :-1], slack[..., :-1]")
    return [
        *out,
        '    want = torch.einsum("hqk,khd->qhd", weight, v)',
        '    spread = torch.einsum("hqk,khd->qh", slack**2, v**2).sqrt()',
        "    return want, 5 * spread + torch.finfo(DTYPE).eps * want.norm(dim=-1)",
    ]


def _slack(plan: Plan) -> list[str]:
    """The standard error of each weight; in a type of small range the smallest weights are lost."""
    cell = plan.cell
    fp8 = cell.kv_cache_dtype in FP8
    if not fp8 and cell.dtype != "float16":
        return ["    slack = weight * (torch.finfo(DTYPE).eps / 2 + 2**-18)"]
    return [
        f"    info = torch.finfo({'FP8 if quantised else DTYPE' if fp8 else 'DTYPE'})",
        "    lost = torch.minimum(weight, info.smallest_normal * info.eps * weight.amax(-1, keepdim=True))",
        "    slack = weight * (info.eps / 2 + 2**-18) + lost",
    ]


def _mask(plan: Plan) -> list[str]:
    g = plan.cell.geometry
    if g.causal and g.sliding_window is None:
        hidden = "ahead > 0"
    elif g.causal:
        hidden = "(ahead > 0) | (ahead <= -WINDOW)"
    elif g.sliding_window is not None:
        hidden = "ahead.abs() >= WINDOW"
    else:
        return []
    return [
        "    position = torch.arange(len(k), device=device)",
        "    ahead = position - position[-len(q) :, None]  # (queries, keys)",
        f'    logits = logits.masked_fill({hidden}, float("-inf"))',
    ]
