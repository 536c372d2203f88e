"""Bytes that changed where nobody may write: counted a word at a time, and exactly."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 64, 4099])
@pytest.mark.parametrize("offset", [0, 3, 8])
def test_counted_exactly(size: int, offset: int) -> None:
    from capmatrix.engine.judge import _changed

    torch.manual_seed(size + offset)
    now = torch.randint(0, 4, (size + offset,), dtype=torch.uint8)[offset:]
    for _ in range(10):
        was = now.clone()
        if size:
            was[torch.randint(0, size, (min(size, 9),))] = 9
        owned = (torch.rand(size) < 0.5).to(torch.uint8)
        assert _changed(now, was, owned) == int(((now != was) & (owned == 0)).sum())
    assert _changed(now, now.clone(), torch.zeros(size, dtype=torch.uint8)) == 0
