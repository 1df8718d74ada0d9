"""Numbers in error messages."""

from __future__ import annotations

import pytest

from coord.errors import shown_s


@pytest.mark.parametrize(
    ("limit_s", "shown"),
    [
        (0.001, "0.001"),
        (0.0412, "0.041"),
        (0.25, "0.25"),
        (0.99176, "0.99"),
        (2.99176, "3"),
        (10.0, "10"),
        (99.96, "100"),
        (1000.0, "1000"),
        (3600.04, "3600"),
        (1_000_000.0, "1000000"),
    ],
)
def test_a_time_limit_is_a_number_that_people_type(limit_s: float, shown: str) -> None:
    """What is left of a limit is rounded, and no limit has an exponent."""
    assert shown_s(limit_s) == shown
