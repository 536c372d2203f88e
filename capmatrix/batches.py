"""Batch shapes: what one attention call looks like, for each name of the ``batch`` axis.

A batch is a list of requests, each with a query length (new tokens) and a sequence length (context
and new tokens). Lengths are ``short`` where every token costs (the interpreter) and ``full`` where
only the dispatch counts or the hardware is fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .cell import Role


class Request(NamedTuple):
    """One request of a batch, in tokens; ``seq_len`` counts context and new tokens."""

    query_len: int
    seq_len: int


class Batch(NamedTuple):
    """The requests of one call; ``padded_tokens`` extra query rows belong to no request.

    ``mode`` is vLLM's name of how the call runs: ``NONE`` (eager) or ``PIECEWISE`` (between graphs).
    """

    name: str
    requests: tuple[Request, ...]
    padded_tokens: int = 0
    mode: str = "NONE"


def _decode(block: int, k: int, full: bool) -> list[Request]:
    lens = [5, 33, 150] if not full else [5, 33, 150, 1024 + 7]
    return [Request(1, s) for s in lens]


def _verify(block: int, k: int, full: bool) -> list[Request]:
    q = 1 + k
    lens = [q + 7, 50, 150] if not full else [q + 7, 50, 150, 1024 + 7]
    return [Request(q, max(s, q)) for s in lens]


def _verify_uneven(block: int, k: int, full: bool) -> list[Request]:
    q = 1 + k
    return [Request(q, 70), Request(1, 33), Request(max(1, q - 1), 145)]


def _prefill(block: int, k: int, full: bool) -> list[Request]:
    return [Request(7, 7), Request(40, 40)] if not full else [Request(7, 7), Request(40, 40), Request(700, 700)]


def _chunked(block: int, k: int, full: bool) -> list[Request]:
    return [Request(20, 90), Request(33, 130)] if not full else [Request(20, 90), Request(512, 1536)]


def _mixed(block: int, k: int, full: bool) -> list[Request]:
    return [Request(1, 70), Request(20, 20), Request(1 + k, 145), Request(24, 90)]


def _boundary(block: int, k: int, full: bool) -> list[Request]:
    b = min(block, 272) if not full else block
    return [Request(1, max(1, n)) for n in (b - 1, b, b + 1)]


def _padded(block: int, k: int, full: bool) -> list[Request]:
    return [Request(1, 33), Request(1, 70)]


def _long(block: int, k: int, full: bool) -> list[Request]:
    # Past AITER's max_seqlen_k 512 switch, where its 3D (split context) kernel takes over.
    return [Request(1, s) for s in ((513, 700) if not full else (2047, 2049, 20480))]


def _many(block: int, k: int, full: bool) -> list[Request]:
    # Past TRITON_ATTN's 128 // num_kv_heads switch for every rank with KV heads; short contexts.
    return [Request(1, 3 + i % 30) for i in range(129 if full else 48)]


_SHAPES: dict[str, Callable[[int, int, bool], list[Request]]] = {
    "decode": _decode,
    "verify": _verify,
    "verify_uneven": _verify_uneven,
    "prefill": _prefill,
    "chunked_prefill": _chunked,
    "mixed": _mixed,
    "boundary": _boundary,
    "padded": _padded,
    "long_decode": _long,
    "many_decode": _many,
}

#: Every value of the ``batch`` axis.
NAMES: tuple[str, ...] = tuple(_SHAPES)

_PADDED_TOKENS = 3


def build(name: str, *, block_size: int, num_speculative_tokens: int, lengths: str) -> Batch:
    """The batch called ``name`` for a manager block of ``block_size`` tokens and k speculative tokens.

    Raises KeyError for an unknown name.
    """
    requests = tuple(_SHAPES[name](block_size, num_speculative_tokens, lengths == "full"))
    return Batch(name, requests, _PADDED_TOKENS if name == "padded" else 0)


def in_worker_order(batch: Batch, decode_query_len: int) -> Batch:
    """The requests as vLLM's worker orders them: those of ``decode_query_len`` (1 + k) tokens lead, then the shorter.

    ROCM_AITER_FA's and latent attention's metadata builders rely on it (vllm 0.32,
    ``vllm/v1/worker/gpu/model_runner.py``, ``sort_batch_req_ids``).
    """
    requests = sorted(batch.requests, key=lambda r: (r.query_len != decode_query_len, r.query_len))
    return batch._replace(requests=tuple(requests))


#: Batches that must pass before a backend is a candidate, by method and role (design: role).
#: EAGLE, EAGLE3 and MTP drafters: a first pass with the target's lengths (prefill, chunked, verify),
#: then k - 1 decodes. DFlash and DSpark: one non-causal pass over a block of query tokens.
_SEQUENTIAL = ("prefill", "chunked_prefill", "verify", "decode", "mixed")
_ONE_PASS = ("verify", "chunked_prefill", "mixed")
_TARGET = ("prefill", "chunked_prefill", "decode", "verify", "verify_uneven", "mixed")


def needed(method: str, role: Role) -> tuple[str, ...]:
    """The batches a method's role needs to work in service."""
    if role is Role.TARGET or method == "ngram":
        return _TARGET
    if method in ("dflash", "dspark"):
        return _ONE_PASS
    return _SEQUENTIAL
