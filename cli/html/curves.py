"""The geometry of curves in HTML reports. Pure: numbers in, coordinates of an SVG drawing out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

#: Size of a drawing of curves, and the place of its axes' labels.
WIDTH: Final = 640
HEIGHT: Final = 260
LEFT: Final = 70
BOTTOM: Final = 30
TOP: Final = 12
RIGHT: Final = 12
_TICKS: Final = 4


class Series(msgspec.Struct, frozen=True):
    """One curve: its name, and its points in the order of x."""

    label: str
    points: tuple[tuple[float, float], ...]


class Tick(msgspec.Struct, frozen=True):
    """A label at a place of an axis."""

    at: float
    label: str


class CurveLine(msgspec.Struct, frozen=True):
    """A curve as coordinates: the attribute `points` of a polyline, and each point with its value."""

    label: str
    path: str
    dots: tuple[tuple[float, float, str], ...]


class Drawing(msgspec.Struct, frozen=True):
    """Curves with their axes."""

    title: str
    unit: str
    lines: tuple[CurveLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def curves(title: str, unit: str, series: Sequence[Series]) -> Drawing:
    """Return the drawing of some curves: x is logarithmic, because sizes grow by factors; y begins at 0.

    Points whose x is not above 0 are left out.
    """
    kept = [msgspec.structs.replace(one, points=tuple(p for p in one.points if p[0] > 0)) for one in series]
    xs = sorted({x for one in kept for x, _ in one.points})
    most = nice(max((y for one in kept for _, y in one.points), default=1.0))
    low, high = (math.log10(xs[0]), math.log10(xs[-1])) if xs else (0.0, 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        part = (math.log10(x) - low) / (high - low) if high > low else 0.5
        across = LEFT + part * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM), 1)

    lines = []
    for one in kept:
        dots = tuple((*place(x, y), f"{one.label}: {figure(y)} {unit} at {figure(x)}") for x, y in one.points)
        lines.append(CurveLine(one.label, " ".join(f"{x},{y}" for x, y, _ in dots), dots))
    steps = [most * step / _TICKS for step in range(_TICKS + 1)]
    return Drawing(
        title,
        unit,
        tuple(lines),
        tuple(Tick(place(x, 0)[0], figure(x)) for x in xs),
        tuple(Tick(place(10**low, y)[1], figure(y)) for y in steps),
    )


def nice(most: float) -> float:
    """Return the least of 1, 2, 4, 5 or 8 times a power of ten that is not below `most`; 1 if `most` is not above 0."""
    if most <= 0 or not math.isfinite(most):
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= most * (1 - 1e-9))


def figure(value: float) -> str:
    """Return a number for a label: at most three digits, thousands with commas."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
