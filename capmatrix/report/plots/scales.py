"""Axes as arithmetic: where a value lies in pixels, which ticks an axis has, how a number is written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: From this ratio of largest to smallest on, an axis is logarithmic: the small ones could not be told apart.
LOG_RATIO = 20.0


@dataclass(frozen=True)
class Scale:
    """A numeric axis from ``low`` to ``high``, drawn from pixel ``start`` to pixel ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixel of ``value``. Raises ValueError for one that a logarithmic axis does not have."""
        low, high, here = (_log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (here - low) / (high - low) * (self.end - self.start)

    def clamped(self, value: float) -> float:
        """Pixel of ``value``, or of the nearer end where it lies outside."""
        return self.at(min(max(value, self.low), self.high))

    def ticks(self, most: int = 5) -> list[float]:
        """About ``most`` round values within the axis, smallest first."""
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


@dataclass(frozen=True)
class Slots:
    """An axis of named places, evenly spaced, for values whose distances mean nothing (block sizes)."""

    values: tuple[int, ...]
    start: float
    end: float

    @property
    def width(self) -> float:
        """Pixels of one place."""
        return (self.end - self.start) / len(self.values)

    def at(self, value: int, series: int = 0, of: int = 1) -> float:
        """Middle of the place of ``value``, moved aside for one of several series, so that they do not hide."""
        aside = (series - (of - 1) / 2) * min(self.width * 0.72 / of, 70.0)
        return self.start + (self.values.index(value) + 0.5) * self.width + aside


def fitting(values: Iterable[float], start: float, end: float, *, log: bool | None = None) -> Scale:
    """An axis that holds ``values``, with round ends; from zero where it is linear.

    ``log`` is chosen by ``LOG_RATIO`` unless given; values of zero or less rule it out. Raises ValueError without a
    value.
    """
    found = [v for v in values if math.isfinite(v)]
    if not found:
        raise ValueError("an axis needs a value")
    low, high = min(found), max(found)
    if log is None:
        log = low > 0 and high / low > LOG_RATIO
    if log and low > 0:
        low, high = _round_down(low), _round_up(high)
        return Scale(low, high if high > low else 10 * low, start, end, log=True)
    top = high if high > 0 else 1.0
    step = _step(top, 5)
    return Scale(0.0, math.ceil(round(top / step, 9)) * step, start, end)


def number(value: float) -> str:
    """A number for people: thousands separated, about three figures below 100, no exponent."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    decimals = 0 if size >= 100 else max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:,.{min(decimals, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def coordinate(value: float) -> str:
    """A pixel coordinate, to a hundredth, without trailing zeros: the same bytes everywhere."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _log(value: float) -> float:
    if value <= 0:
        raise ValueError("a logarithmic axis has no zero")
    return math.log10(value)


def _decade(value: float) -> float:
    return float(10 ** math.floor(math.log10(value)))


def _round_down(value: float) -> float:
    decade = _decade(value)
    return max(m * decade for m in (1, 2, 5) if m * decade <= value * (1 + 1e-9))


def _round_up(value: float) -> float:
    decade = _decade(value)
    top = min(m * decade for m in (1, 2, 5, 10) if m * decade >= value * (1 - 1e-9))
    return float(top)


def _step(span: float, most: int) -> float:
    raw = span / most
    decade = 10 ** math.floor(math.log10(raw))
    return float(next(m * decade for m in (1, 2, 5, 10) if m * decade >= raw * (1 - 1e-9)))


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    step = _step(high - low, most)
    first = math.ceil(round(low / step, 9))
    last = math.floor(round(high / step, 9))
    return [n * step for n in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)

    def within(factors: Sequence[int], every: int = 1) -> list[float]:
        found = [m * 10.0**n for n in range(first, last + 1, every) for m in factors]
        return [v for v in found if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]

    for factors in ((1, 2, 5), (1,)):
        if len(within(factors)) <= most + 2:
            return within(factors)
    return within((1,), math.ceil((last - first) / most))
