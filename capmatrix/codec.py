"""Cells and records to JSON and back, validated by their types; a cell's id."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from .cell import Cell, Force

T = TypeVar("T")

_encoder = msgspec.json.Encoder(order="deterministic")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

_DTYPE_TOKENS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def encode(value: object) -> bytes:
    """One line of JSON (no newline); keys in a stable order."""
    return _encoder.encode(value)


def printed(value: object) -> str:
    """``encode`` as text for a terminal: characters that one would obey (C1 controls, changes of direction) escaped."""
    text = encode(value).decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(c: str) -> str:
    units = c.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def decode(data: bytes | str, kind: type[T]) -> T:
    """JSON to ``kind``. Raises ``msgspec.ValidationError`` naming the path, or ``DecodeError``."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(data)  # type: ignore[no-any-return]


def cell_id(cell: Cell) -> str:
    """The cell's stable, readable id, usable as a pytest node id and, token by token, with ``-k``.

    Tokens are joined with ``-``: target, backend, ``b<block>``, KV cache dtype, drafter, ``tp<n>``,
    ``heads<q>.<kv>``, ``h<head size>``, dtype, batch (a verify says ``q<query length>``), then what
    differs from the defaults.
    """
    return "-".join([token for _, token in cell_tokens(cell)])


def cell_tokens(cell: Cell) -> list[tuple[str, str]]:
    """The tokens of a cell's id in order, each with the axis (a field of ``Cell`` or ``Geometry``) it states."""
    g = cell.geometry
    batch = cell.batch
    if batch.startswith("verify") or batch in ("mixed", "padded"):
        batch += f".q{1 + cell.num_speculative_tokens}"
    tokens = [
        ("target", cell.target),
        ("backend", cell.backend),
        ("block_size", f"b{cell.block_size}"),
        ("kv_cache_dtype", cell.kv_cache_dtype),
        ("drafter", cell.drafter),
        ("tp", f"tp{cell.tp}"),
        ("num_heads", f"heads{g.num_heads}.{g.num_kv_heads}"),
        ("head_size", f"h{g.head_size}"),
        ("dtype", _DTYPE_TOKENS.get(cell.dtype, cell.dtype)),
        ("batch", batch),
    ]
    if cell.execution != "eager":
        tokens.append(("execution", cell.execution))
    if cell.runner != "v2":
        tokens.append(("runner", cell.runner))
    if cell.scales != "non_unit":
        tokens.append(("scales", cell.scales))
    if cell.force is not Force.NONE:
        kernel_block = "" if cell.kernel_block is None else f".kb{cell.kernel_block}"
        tokens.append(("force", f"force_{cell.force.value}{kernel_block}"))
    tokens += [("switches", f"{name}={value}") for name, value in cell.switches]
    return tokens


def setup_key(cell: Cell) -> tuple[object, ...]:
    """What cells must share to share layer, cache and builders: everything but the batch."""
    return (
        cell.target,
        cell.backend,
        cell.block_size,
        cell.kv_cache_dtype,
        cell.dtype,
        cell.geometry,
        cell.drafter,
        cell.role,
        cell.method,
        cell.num_speculative_tokens,
        cell.execution,
        cell.runner,
        cell.scales,
        cell.force,
        cell.kernel_block,
        cell.switches,
    )


def server_key(cell: Cell) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What cells must share to share a worker process: vLLM fixes target and switches at import."""
    return (cell.target, cell.switches)
