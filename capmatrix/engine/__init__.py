"""The only room that imports vllm, aiter, triton and torch; this file imports none of them."""

from __future__ import annotations

from ..errors import CapmatrixError


class Unavailable(CapmatrixError):
    """A target cannot run here (a dependency or the hardware is missing); the text says what and what to do.

    Raised by ``open_session``; every cell of the target becomes ``unavailable`` with this text.
    """
