"""Questions about drafter families: a family's layer, and the server that a user would start for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .. import archs, drafters
from ..cell import Role
from ..drafters import Family
from ..errors import InputError
from ..vocabulary import DTYPES, KV_CACHE_DTYPES, OTHER_BACKENDS, ROCM_BACKENDS, RUNNERS, SWITCHES
from .questions import Question

#: The model dtype a question takes where a table leaves it to the checkpoint.
AUTO_DTYPE = "bfloat16"


class Server(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user sets besides block and KV cache dtype; see ``Question``. ``tp`` 0: the family's first degree.

    ``sinks`` and ``non_causal`` only add to what the family says, ``sliding_window`` replaces it.
    """

    runner: str = ""
    target_backend: str = ""
    drafter_backend: str = ""
    tp: int = 0
    sinks: bool = False
    non_causal: bool = False
    sliding_window: int | None = None
    kv_connector: str = ""
    dcp: int = 1
    switches: tuple[tuple[str, str], ...] = ()


def question(
    family: Family, arch: str, block_size: int | None, kv_cache_dtype: str, dtype: str, server: Server
) -> Question:
    """The family's layer in that server. Raises InputError for what is not known or does not fit."""
    check(arch, kv_cache_dtype, dtype, server)
    tp = server.tp or family.tensor_parallel[0]
    geometry = drafters.geometry(family, tp)
    changes: dict[str, object] = {}
    if server.sinks:
        changes["sinks"] = True
    if server.non_causal:
        changes["causal"] = False
    if server.sliding_window is not None:
        changes["sliding_window"] = server.sliding_window
    return Question(
        arch=arch,
        geometry=msgspec.structs.replace(geometry, **changes),
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        dtype=AUTO_DTYPE if dtype == "auto" else dtype,
        role=family.role,
        method=family.method,
        num_speculative_tokens=0 if family.method == "none" else family.num_speculative_tokens,
        runner=server.runner,
        target_backend=server.target_backend,
        drafter_backend=server.drafter_backend if family.role is Role.DRAFTER else "",
        kv_connector=server.kv_connector,
        dcp=server.dcp,
        tp=tp,
        total_kv_heads=family.num_kv_heads,
        switches=server.switches,
    )


def check(arch: str, kv_cache_dtype: str, dtype: str, server: Server) -> None:
    """Raises InputError naming what is not known."""
    archs.get(arch)
    for key, value, allowed in (
        ("--kv-cache-dtype", kv_cache_dtype, KV_CACHE_DTYPES),
        ("--dtype", dtype, (*DTYPES, "auto")),
        ("--runner", server.runner, ("", *RUNNERS)),
        ("--target-backend", server.target_backend, ("", *ROCM_BACKENDS, *OTHER_BACKENDS)),
        ("--drafter-backend", server.drafter_backend, ("", *ROCM_BACKENDS, *OTHER_BACKENDS)),
    ):
        if value not in allowed:
            raise InputError("unknown", key=key, value=value, allowed=[a for a in allowed if a])


def find(name: str) -> Family:
    """A shipped family. InputError naming those there are."""
    known = drafters.load(drafters.DEFAULT_DIR)
    if name not in known:
        raise InputError("no such drafter family", key="--drafter", value=name, allowed=known)
    return known[name]


def switch_pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE`` words to sorted pairs. InputError for another form, an unknown switch, or one given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError("must be NAME=VALUE", key="--switch", value=word)
        if name not in SWITCHES:
            raise InputError("unknown switch", key="--switch", value=name, allowed=SWITCHES)
        if found.setdefault(name, value) != value:
            raise InputError("given twice, with two values", key="--switch", value=name)
    return tuple(sorted(found.items()))


def named(question: Question) -> str:
    """The question's layer in words: ``gfx950, eagle3 drafter, heads 16/16 of 128, block 128, fp8``."""
    g = question.geometry
    block = "no block set" if question.block_size is None else f"block {question.block_size}"
    whose = f"{question.method} {question.role.value}" if question.method != "none" else question.role.value
    words = [question.arch, whose, f"heads {g.num_heads}/{g.num_kv_heads} of {g.head_size}", block]
    words += [question.kv_cache_dtype, question.dtype]
    words += ["latent attention"] if g.mla is not None else []
    words += ["sinks"] if g.sinks else []
    words += [f"window {g.sliding_window}"] if g.sliding_window is not None else []
    words += [] if g.causal else ["non-causal"]
    words += [f"connector {question.kv_connector}"] if question.kv_connector else []
    words += [f"dcp {question.dcp}"] if question.dcp > 1 else []
    words += [f"{name}={value}" for name, value in question.switches]
    return ", ".join(words)
