"""Conditions for which `rk up` and drills wait."""

from __future__ import annotations

import msgspec

from cli.up.progress import as_wanted
from regions.messages import MasterStatus

STATUS = msgspec.convert(
    {
        "cluster": "c", "uuid": "m", "role": "active", "epoch": 1, "active": "", "path": "", "servers": 3, "masters": 1,
        "tables": 1, "regions": 4, "replicas": 4, "open": 4, "rit": 0, "parked": 0,
        "phases": [], "plan": None, "problems": [], "uptime_ms": 1,
    },
    MasterStatus,
)  # fmt: skip


def test_a_tablet_that_clients_cannot_use_is_in_transition() -> None:
    """A new table is not at rest, even if no member has a transition yet."""
    assert as_wanted(msgspec.structs.replace(STATUS, rit=0, unusable=2)).rit == 2
    assert as_wanted(STATUS) == STATUS


def test_no_more_is_in_transition_than_there_is() -> None:
    """Four tablets in creation, each with three members that have transitions."""
    assert as_wanted(msgspec.structs.replace(STATUS, replicas=12, open=0, rit=12, unusable=4)).rit == 12


def test_a_disabled_table_need_not_be_open() -> None:
    found = as_wanted(msgspec.structs.replace(STATUS, replicas=10, open=4, resting=6))
    assert (found.replicas, found.open) == (4, 4)
