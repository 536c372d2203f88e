"""Lines of a script that compare what the layer gave with plain attention in float64, and say what is off."""

from __future__ import annotations

from .needs import FP8, has_scales
from .plan import Plan


def comparison(plan: Plan) -> list[str]:
    """What each request should be and is; exit status 1 where a row is off."""
    body = [
        "rows = slice(int(starts[i]), int(starts[i + 1]))",
        *_stored(plan),
        "ratio = ((out[rows].double() - want).norm(dim=-1) / bound).nan_to_num(nan=torch.inf)",
        "worst = divmod(int(ratio.argmax()), HEADS)",
        "off += int((ratio > 1).sum())",
        'print(f"request {i}, {new} new of {length} tokens: token, head {worst}: {ratio[worst]:.3g} x its bound")',
        'print(f"    expected {want[worst][:4].tolist()}, got {out[rows][worst][:4].tolist()}")',
    ]
    loop = "for i, (new, length) in enumerate(BATCH):"
    out = ["off = 0", loop, *(f"    {line}" for line in body)]
    if plan.calls > 1:
        out = ["off = 0", "for out in calls:", f"    {loop}", *(f"        {line}" for line in body)]
    return [*out, "if off:", '    sys.exit(f"WRONG: {off} rows are off")', 'print("OK: every row is within its bound")']


def _stored(plan: Plan) -> list[str]:
    """Attention over what the cache should hold, and the query as the layer hands it on."""
    kv = plan.cell.kv_cache_dtype
    if kv in ("float16", "bfloat16") and kv != plan.cell.dtype:
        return [f"want, bound = attention(q[rows], k[i].to(torch.{kv}), v[i].to(torch.{kv}))"]
    if kv not in FP8:
        return ["want, bound = attention(q[rows], k[i], v[i])"]
    q_scale, k_scale, v_scale = (f"layer._{name}_scale_float" if has_scales(plan) else "1.0" for name in "qkv")
    out = [
        f"query = rounded(q[rows], {q_scale}) if quantised else q[rows]",
        f"keys, vals = rounded(k[i], {k_scale}), rounded(v[i], {v_scale})",
    ]
    if plan.unquantised:
        out += [
            "if new > 1:  # this kernel reads several new tokens as they are, not from the cache",
            "    keys[-new:], vals[-new:] = k[i][-new:].double(), v[i][-new:].double()",
        ]
    return [*out, "want, bound = attention(query, keys, vals)"]
