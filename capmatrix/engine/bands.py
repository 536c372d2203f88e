"""Bands of NaN around the buffers that a kernel gets, and a look at whether it kept to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

#: Rows of a band, on either side of a buffer.
ROWS = 4

#: Elements of a band around a buffer that code makes for itself, at least; a kernel's tile behind its last row fits.
_LEAST = 1 << 14

#: One byte of a band; repeated it is a NaN in every floating type, and in FP8 but for e4m3fnuz's only one.
_BYTE = 0xFF


_made: list[Banded] = []


class Banded(NamedTuple):
    """``view`` is the buffer that a kernel gets, ``whole`` the memory with its bands of ``band`` rows.

    ``before`` are its bytes.
    """

    name: str
    view: torch.Tensor
    whole: torch.Tensor
    before: torch.Tensor
    band: int = ROWS

    def given(self) -> torch.Tensor:
        """The buffer as it was when the kernel got it."""
        return self.before[self.band : self.band + self.view.shape[0]].view(self.view.dtype)


def around(name: str, x: torch.Tensor) -> Banded:
    """A contiguous copy of ``x`` (rows, ...) with a band before and behind."""
    whole = torch.empty(x.shape[0] + 2 * ROWS, *x.shape[1:], dtype=x.dtype, device=x.device)
    raw(whole).fill_(_BYTE)
    view = whole[ROWS : ROWS + x.shape[0]]
    raw(view).copy_(raw(x.contiguous()))
    return Banded(name, view, whole, raw(whole).clone())


def empty(name: str, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A buffer on the CPU for code that makes its own, NaN at first and with bands around it; see ``made``."""
    elements = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else 0
    band = max(elements, _LEAST)
    whole = torch.empty(2 * band + elements, 1, dtype=dtype)
    raw(whole).fill_(_BYTE)
    _made.append(Banded(name, whole[band : band + elements], whole, raw(whole).clone(), band))
    return whole.as_strided(size, stride, band)


def made() -> list[Banded]:
    """What ``empty`` made since the last call."""
    found = list(_made)
    _made.clear()
    return found


def raw(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor."""
    return x.view(torch.uint8)


def bands_changed(banded: Banded) -> bool:
    """Whether a kernel wrote into a band."""
    start, end = banded.band, banded.band + banded.view.shape[0]
    now = raw(banded.whole)
    return not (torch.equal(now[:start], banded.before[:start]) and torch.equal(now[end:], banded.before[end:]))


def trespasses(read: list[Banded], written: list[Banded], tables: dict[str, tuple[Any, Any]]) -> list[str]:
    """What a kernel changed that it may not: inputs and their bands, bands of outputs, ``tables`` (now, before)."""
    found = [b.name for b in read if not torch.equal(raw(b.whole), b.before)]
    found += [f"the band of {b.name}" for b in written if bands_changed(b)]
    found += [name for name, (now, before) in tables.items() if not torch.equal(now, before)]
    return found
