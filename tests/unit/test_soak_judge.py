"""Which figures of a soak with real processes count as growing (tests/soak_real/judge.py)."""

from __future__ import annotations

import pytest

from tests.soak_real.judge import SAMPLES_MIN, Sample, growth, judge

NAME = ("/tables", "znodes")


def samples(*values: float) -> list[Sample]:
    return [Sample(10.0 * number, value) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "is_growing"),
    [
        ([1000] * 12, False),
        (range(1000, 2200, 100), True),
        (range(2200, 1000, -100), False),
        # The rise is less than a tenth.
        (range(1000, 1084, 7), False),
        # A tenth of little is less than the slack.
        (range(10, 34, 2), False),
        # A sawtooth: files that wait for a snapshot.
        ([1000, 2000, 3000] * 12, False),
        # Up once, and flat from then on: no growth for ever.
        ([1000] * 4 + [3000] * 8, False),
        # One outlier.
        ([1000] * 11 + [9000], False),
    ],
)
def test_flat_or_growing(values: list[float], is_growing: bool) -> None:
    assert (growth(NAME, samples(*values), 0) is not None) is is_growing


def test_growth_before_the_retention_is_none() -> None:
    rise, rest = [float(value) for value in range(0, 2000, 100)], [2000.0] * 12
    assert growth(NAME, samples(*rise, *rest), 200) is None
    assert growth(NAME, samples(*rise), 0) is not None


def test_too_few_samples_are_not_judged() -> None:
    few, enough = samples(*range(0, 800, 100)), samples(*range(0, 900, 100))
    assert (len(few), len(enough)) == (SAMPLES_MIN - 1, SAMPLES_MIN)
    assert judge({NAME: few}, 0) == ([], 0)
    found, judged = judge({NAME: enough, ("/names", "znodes"): few}, 0)
    assert (judged, [str(one) for one in found]) == (1, ["/tables: znodes rose from 100 to 700"])


def test_a_process_that_was_started_later_settles_later() -> None:
    late = [Sample(1000 + 10.0 * number, 1e9 * min(number, 10)) for number in range(20)]
    assert judge({("server1 (start 2)", "bytes"): late}, 100) == ([], 1)
    assert judge({("server1 (start 2)", "bytes"): late[:15]}, 100) == ([], 0)
    assert len(judge({("server1 (start 2)", "bytes"): late}, 0)[0]) == 1
