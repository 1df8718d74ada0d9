"""Ring buffers of one value a second."""

from __future__ import annotations

from regions.page.curves import SERIES, Curves


def _values(number: float) -> list[float]:
    return [number] * len(SERIES)


def test_the_latest_values_are_kept_in_order() -> None:
    """The buffer wraps around, the first second says where it begins."""
    curves = Curves(3)
    assert curves.read() == (0, [[] for _ in SERIES])
    for second in range(100, 105):
        curves.add(second, _values(second))
    first, series = curves.read()
    assert (first, series[0]) == (102, [102.0, 103.0, 104.0])
    assert curves.read(1) == (104, [[104.0]] * len(SERIES))


def test_seconds_that_were_missed_are_missing() -> None:
    """A process that was stopped shows a gap, no line."""
    curves = Curves(4)
    curves.add(10, _values(1))
    curves.add(13, _values(2))
    assert curves.read() == (10, [[1.0, None, None, 2.0]] * len(SERIES))
    curves.add(1000, _values(3))
    assert curves.read() == (997, [[None, None, None, 3.0]] * len(SERIES))


def test_an_earlier_second_is_ignored() -> None:
    """The clock gives two samples of one second, or steps back: the curve keeps the first sample."""
    curves = Curves(3)
    curves.add(10, _values(1))
    curves.add(10, _values(2))
    curves.add(9, _values(3))
    assert curves.read() == (10, [[1.0]] * len(SERIES))
