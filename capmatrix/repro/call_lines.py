"""Lines of a script that call the layer on a batch and compare what it gives with plain attention in float64."""

from __future__ import annotations

from .needs import has_context, window_left
from .plan import Plan
from .setup_lines import packed


def values(plan: Plan) -> list[str]:
    """Q, K and V of the batch, in the model's dtype."""
    return _needles(plan) if plan.needles else _normal(plan)


def _normal(plan: Plan) -> list[str]:
    """Normal values; a mean moves all logits to about -16, so that a slot of zeros would take all the weight."""
    g, out = plan.cell.geometry, ["torch.manual_seed(0)"]
    q, kv = "torch.randn(sum(new for new, _ in BATCH), HEADS, SIZE)", "torch.randn(length, KV_HEADS, SIZE)"
    k = kv
    if g.logits_soft_cap:
        q = f"({q} * SOFT_CAP)"
    elif not g.sinks:
        out.append("# Logits around -16: a slot of zeros that is read by mistake takes all the weight.")
        out.append("mean = 4 * SIZE**-0.25")
        q, k = f"({q} - mean)", f"({kv} + mean)"
    each = "for _, length in BATCH"
    return [
        *out,
        f"q = {q}.to(device, DTYPE)",
        f"k = [{k}.to(device, DTYPE) {each}]",
        f"v = [{kv}.to(device, DTYPE) {each}]",
    ]


def _needles(plan: Plan) -> list[str]:
    """Keys and values of ±1, and each query points at one key of those that it may read."""
    return [
        "torch.manual_seed(0)",
        "k, v = ([signs(length) for _, length in BATCH] for _ in range(2))",
        "q = torch.cat([pointing(keys, new) for keys, (new, _) in zip(k, BATCH)])",
    ]


def placement(plan: Plan) -> list[str]:
    """Each request's blocks in shuffled order, block 0 being vLLM's null block, and the slots of its tokens."""
    out = [
        "# Blocks in shuffled order; block 0 is vLLM's null block.",
        "block = specs[NAME].block_size",
        "counts = [-(-length // block) for _, length in BATCH]",
        "order = (torch.randperm(blocks - 1) + 1)[: sum(counts)]",
        "table = torch.zeros(len(BATCH), max(counts), dtype=torch.int32)",
        "slots = []",
        f"for row, own, ({'new' if window_left(plan) else '_'}, length) in zip(table, order.split(counts), BATCH):",
        "    row[: len(own)] = own",
        "    slots.append((own[:, None] * block + torch.arange(block)).flatten()[:length].to(device))",
    ]
    if window_left(plan):
        out += [
            "    gone = max(0, length - new - WINDOW + 1) // block  # blocks that the window has left behind",
            "    row[:gone] = 0",
            "    slots[-1][: gone * block] = -1",
        ]
    return out


def fill(plan: Plan) -> list[str]:
    """What unused slots hold, where it matters."""
    if plan.fill == "zeroed":
        return []
    fp8 = plan.cell.kv_cache_dtype.startswith("fp8")
    if plan.fill == "nan":
        what = '0x80 if "fnuz" in str(FP8) else 0x7F' if fp8 else 'float("nan")'
        return ["# NaN in every slot that is not written.", f"layer.kv_cache.fill_({what})"]
    if fp8:
        line = "layer.kv_cache.copy_(torch.randint(0, 2, layer.kv_cache.shape) * 0x80 + 0x7B)"
    else:
        line = "layer.kv_cache.uniform_(-3e4, 3e4)"
    return ["# Large finite values in every slot that is not written.", line]


def forward(plan: Plan) -> list[str]:
    """The context through the backend's own writer, vLLM's metadata, then the layer on the new tokens."""
    padded = plan.batch.padded_tokens
    out = _write(plan) if has_context(plan) else []
    out += [
        "new_k, new_v, new_slots = (torch.cat([x[-new:] for x, (new, _) in zip(of, BATCH)]) for of in (k, v, slots))",
    ]
    if padded:
        out += [
            "inputs = [x.flatten(1) for x in (q, new_k, new_v)]",
            f"# {padded} padded rows that belong to no request.",
            f'inputs = [torch.cat((x, x.new_full(({padded}, x.shape[1]), float("nan")))) for x in inputs]',
            f"new_slots = torch.cat((new_slots, new_slots.new_full(({padded},), -1)))",
        ]
    out += [
        "new, lengths = (torch.tensor(column, dtype=torch.int32) for column in zip(*BATCH))",
        "starts = torch.cat((torch.zeros(1), new.cumsum(0))).int()",
        "positions = torch.cat([torch.arange(length - new, length) for new, length in BATCH])",
        "metadata = attn_utils.build_attn_metadata(",
        *packed(
            [
                "groups",
                "len(BATCH)",
                "len(q)",
                "starts.to(device)",
                "starts",
                "int(new.max())",
                "lengths.to(device)",
                "int(lengths.max())",
                "[table.to(device)]",
                "new_slots[None]",
                "kv_config",
                "seq_lens_cpu_upper_bound=lengths",
                "positions=positions.to(device)",
                "is_prefilling=new == lengths",
                f"causal={plan.cell.geometry.causal}",
            ]
        ),
        ")  # fmt: skip",
        "by_layer = attn_utils.build_slot_mappings_by_layer(new_slots[None], kv_config)",
        "with set_forward_context(metadata, config, num_tokens=len(new_slots), slot_mapping=by_layer):",
    ]
    inputs = "*inputs" if padded else "q.flatten(1), new_k.flatten(1), new_v.flatten(1)"
    call = f"layer({inputs}).view(-1, HEADS, SIZE)" + ("[: len(q)]" if padded else "")
    return [*out, f"    {f'calls = [{call} for _ in range({plan.calls})]' if plan.calls > 1 else f'out = {call}'}"]


def _write(plan: Plan) -> list[str]:
    """The context, but for what a sliding window has evicted."""
    parts = "(torch.cat([x[: n - new] for x, (new, n) in zip(of, BATCH)]) for of in (k, v, slots))"
    out = [f"old_k, old_v, old_slots = {parts}"]
    if not window_left(plan):
        return [*out, "layer.impl.do_kv_cache_update(layer, old_k, old_v, layer.kv_cache, old_slots)"]
    return [
        *out,
        "here = old_slots >= 0  # what the window has left behind is not written",
        "layer.impl.do_kv_cache_update(layer, old_k[here], old_v[here], layer.kv_cache, old_slots[here])",
    ]
