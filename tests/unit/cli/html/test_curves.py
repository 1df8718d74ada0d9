"""The geometry of curves in reports."""

from __future__ import annotations

import pytest

from cli.html.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Series, curves, nice


def test_x_grows_by_factors_and_y_from_zero() -> None:
    """Ten times as many regions are one step to the right, wherever they are; the highest tick is the top."""
    drawn = curves("assigned", "s", [Series("all", ((100, 1.0), (1_000, 2.0), (10_000, 4.0)))])
    (line,) = drawn.lines
    xs, ys = [x for x, _, _ in line.dots], [y for _, y, _ in line.dots]
    assert (xs[0], xs[-1]) == (LEFT, WIDTH - RIGHT)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert ys[-1] == TOP
    assert HEIGHT - BOTTOM - ys[1] == pytest.approx((HEIGHT - BOTTOM - ys[2]) / 2)
    assert [tick.label for tick in drawn.x_ticks] == ["100", "1,000", "10,000"]
    assert [tick.label for tick in drawn.y_ticks] == ["0", "1", "2", "3", "4"]
    assert line.dots[1][2] == "all: 2 s at 1,000"


def test_a_single_size_and_nothing_at_all_can_be_drawn() -> None:
    """No division by zero, and no point where the logarithm has no value."""
    assert curves("", "", [Series("one", ((0, 1.0), (5, 1.0)))]).lines[0].path == "349.0,12.0"
    assert curves("", "", [Series("none", ())]).lines[0].path == ""


@pytest.mark.parametrize(("most", "top"), [(0.0, 1.0), (0.3, 0.4), (1.0, 1.0), (1.1, 2.0), (4.5, 5.0), (9.0, 10.0)])
def test_the_axis_ends_at_a_round_number(most: float, top: float) -> None:
    """The highest value fits below it."""
    assert nice(most) == pytest.approx(top)
