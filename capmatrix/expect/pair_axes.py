"""What an expectation may say of a pair of a target and its drafter, where a cell has its own axes. Pure."""

from __future__ import annotations

from .. import vocabulary
from ..axes import AXES, Axis, Value
from ..pair import AUTO, RUNNERS, SAME, Pair

_BACKENDS = (AUTO, *vocabulary.ROCM_BACKENDS, *vocabulary.OTHER_BACKENDS)

_AXES = (
    Axis("target_model", "The pair's target model.", names=None),
    Axis("target_backend", "What the target is asked for; auto: left to vLLM.", names=_BACKENDS),
    Axis("drafter_backend", "What the drafter is asked for; auto: left to vLLM.", names=_BACKENDS),
    Axis(
        "draft_kv_cache_dtype",
        "The draft's own KV cache dtype; same: that of its target.",
        names=(SAME, *vocabulary.KV_CACHE_DTYPES),
    ),
)

#: Keys that pairs alone have: an entry that names one is about pairs.
OWN: dict[str, Axis] = {axis.name: axis for axis in _AXES}

#: What a pair is matched by, besides its id and switches. Blocks and runners may be left to vLLM.
MATCHERS: dict[str, Axis] = {
    **OWN,
    **{name: AXES[name] for name in ("drafter", "tp", "kv_cache_dtype", "num_speculative_tokens", "dtype")},
    "block_size": AXES["block_size"]._replace(names=(AUTO,)),
    "runner": AXES["runner"]._replace(names=RUNNERS),
}


def axes_of(pair: Pair) -> dict[str, Value]:
    """A pair's value for every axis that an entry may name, switches left out."""
    return {
        "target_model": pair.target_model.family,
        "target_backend": pair.target_model.backend or AUTO,
        "drafter": pair.drafter.family,
        "drafter_backend": pair.drafter.backend or AUTO,
        "tp": pair.tp,
        "num_speculative_tokens": pair.num_speculative_tokens,
        "block_size": pair.block_size or AUTO,
        "kv_cache_dtype": pair.kv_cache_dtype,
        "draft_kv_cache_dtype": pair.draft_kv_cache_dtype or SAME,
        "dtype": pair.dtype,
        "runner": pair.runner,
    }
