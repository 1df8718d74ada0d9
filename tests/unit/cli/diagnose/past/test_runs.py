"""`rk runs`: one event each, with date and zone, within 80 columns."""

from __future__ import annotations

import time

import pytest

from cli.common.names import Names
from cli.diagnose.past.runs import lines
from regions.records.model import RunRecord

#: 2026-11-23 20:05:43.028 UTC.
NOW_MS = 1_795_464_343_028
STARTUP = RunRecord(3, "m1", "10.0.0.1:4000", "startup", NOW_MS, (("load", 0.01), ("servers", 0.52)), 4, 0, 0,
                    kind="startup")  # fmt: skip
BULK = RunRecord(3, "m1", "10.0.0.1:4000", "", NOW_MS + 900, (("plan", 0.02), ("OFFLINE", 0.05), ("open", 0.23)), 4,
                 200, 0, 200, "greedy", "assignment", 1, ("packages",), "000003-aa")  # fmt: skip
#: From a build that kept one record for both.
MIXED = RunRecord(2, "m1", "10.0.0.1:4000", "failover", NOW_MS - 5000, (("load", 0.04), ("plan", 0.02)), 4, 200, 0,
                  200, "greedy")  # fmt: skip

TRANSCRIPT = """\
2026-11-23 21:05:43.928+0100  assignment  epoch 3  10.0.0.1:4000
    0.30 s: plan 0.02, OFFLINE 0.05, open 0.23; 200 replicas by greedy of packages
2026-11-23 21:05:43.028+0100  startup     epoch 3  10.0.0.1:4000
    0.53 s: load 0.01, servers 0.52; 0 replicas, 0 in transition
2026-11-23 21:05:38.028+0100  failover    epoch 2  10.0.0.1:4000
    0.06 s: load 0.04, plan 0.02; 200 replicas by greedy (its build kept only the latest assignment)
"""


def test_events_have_kind_date_and_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5, N10."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        said = [text.plain for text in lines([BULK, STARTUP, MIXED], Names([], None))]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "\n".join(said) + "\n" == TRANSCRIPT
    assert all(len(line) <= 82 for line in said[:4])
