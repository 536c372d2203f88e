"""What vLLM can be asked about its own choice of backend, and what it answers: plain data.

A question is one attention layer in one server's configuration. Its answer is vLLM's, taken in a worker by
vLLM's own functions (``engine.default_query``); nothing is decided here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..cell import Geometry, Role

#: How a layer's backend came to be: the runner's loader left it open and the priority list decided; the
#: configuration named it; the drafter's loader took the target's.
Source = Literal["priority", "explicit", "inherited"]


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attention layer, and the server around it.

    ``geometry`` is that of one rank; ``block_size`` the manager block in tokens that the user sets, None where
    none is set. ``method`` and ``role`` say whose layer it is: a drafter's is resolved through the runner's own
    loader. ``runner`` is ``v1`` or ``v2``, empty for the one vLLM takes by itself. ``target_backend`` and
    ``drafter_backend`` are explicit choices (``--attention-backend``, ``speculative_config.attention_backend``),
    empty where none is made. ``draft_model_type`` names the Hugging Face model type of a drafter whose loader
    asks for it (``deepseek_v4``). ``tp`` and ``total_kv_heads`` (the whole model's, None: ``tp`` times a rank's)
    matter only with ``dcp``, the degree of decode context parallelism. ``switches`` are sorted environment pairs.
    """

    arch: str
    geometry: Geometry
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str = "bfloat16"
    role: Role = Role.TARGET
    method: str = "none"
    num_speculative_tokens: int = 0
    runner: str = ""
    target_backend: str = ""
    drafter_backend: str = ""
    draft_model_type: str = ""
    kv_connector: str = ""
    dcp: int = 1
    tp: int = 1
    total_kv_heads: int | None = None
    switches: tuple[tuple[str, str], ...] = ()


class Tried(msgspec.Struct, frozen=True, omit_defaults=True):
    """A backend of the priority list, and why it cannot serve the layer (empty: it can)."""

    backend: str
    reasons: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What vLLM selects.

    ``backend`` is empty where nothing is selected: ``error`` is then what vLLM raised, and ``stage`` where:
    ``configure`` (the server's configuration), ``load`` (the drafter's loader), ``select`` (the selector).
    ``tried`` is the priority list, in order, with every rejection; it is given for an explicit choice too.
    ``configured`` is the backend that the layer's configuration names when its loader is done, empty for none.
    ``runner`` is the one the layer was resolved for, ``default_runner`` the one vLLM takes by itself;
    ``loader`` names the class that loads the drafter. ``ignored`` is an explicit choice that had no effect.
    """

    backend: str
    source: Source = "priority"
    tried: tuple[Tried, ...] = ()
    configured: str = ""
    runner: str = ""
    default_runner: str = ""
    loader: str = ""
    stage: str = ""
    error: str = ""
    ignored: str = ""

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Every rejection of the priority list."""
        return {tried.backend: tried.reasons for tried in self.tried if tried.reasons}
