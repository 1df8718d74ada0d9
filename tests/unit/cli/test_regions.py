"""`rk region` on tablets: successful commands print how many replicas take part, others an error sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cli import regions
from cli.common.errors import EXIT_REFUSED
from cli.main import run
from cli.tables import replica_state
from regions import messages as ms
from regions.records.members import Member, Storage
from regions.records.model import Incarnation, RegionRecord, TableIntent, TableRecord

TABLE = TableRecord(table_id="t", name="orders", replication=3, storage=Storage.TABLET)
REGION = RegionRecord(
    region_id="t.0", table_id="t", members=(Member(1, "a"), Member(2, "b"), Member(3, "c")), next_number=4
)
MEMBERS = [ms.ReplicaStatus(one.number, Incarnation(one.uuid, 1)) for one in REGION.members]


class OneTablet:
    """A cluster with one tablet."""

    local = None

    def __init__(self) -> None:
        self.asked: list[object] = []

    def servers(self) -> list[object]:
        return []

    def ask_master(self, message: Any, _expect: type, **_options: object) -> Any:
        self.asked.append(message)
        match message:
            case ms.ListTables():
                return ms.Tables([ms.TableSummary(TABLE, 1, 3, 3, 0, 0)])
            case ms.SetRegionIntent():
                return ms.Accepted("t.0 is closed: 0 of 3 replicas take part")
            case _:
                return ms.Regions(TABLE, [ms.RegionStatus(REGION, MEMBERS)])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> OneTablet:
    found = OneTablet()

    @contextlib.contextmanager
    def opened(_given: object, **_options: object) -> Iterator[OneTablet]:
        yield found

    monkeypatch.setattr(regions, "open_cluster", opened)
    return found


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--replica", "1")])
def test_a_tablet_is_not_moved(
    cluster: OneTablet, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["region", "move", "orders:k", *options]) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert "t.0 is a tablet, and members of tablets cannot be moved yet" in said
    assert "rk tablet show t.0" in said
    assert not any(isinstance(one, ms.MoveRegion) for one in cluster.asked)


def test_a_closed_tablet_is_not_said_to_be_on_its_servers(
    cluster: OneTablet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["region", "unassign", "orders:k"]) == 0
    assert capsys.readouterr().out == "t.0 is closed: 0 of 3 replicas take part\n"


def test_members_of_closed_tablets_are_not_open() -> None:
    """The members keep their servers and their files."""
    assert replica_state(MEMBERS[0], REGION, TABLE) == "?", "no report yet"
    assert replica_state(msgspec.structs.replace(MEMBERS[0], takes_part=True), REGION, TABLE) == "open"
    disabled = msgspec.structs.replace(TABLE, intent=TableIntent.DISABLED)
    assert replica_state(MEMBERS[0], REGION, disabled) == "closed"
    assert replica_state(MEMBERS[0], msgspec.structs.replace(REGION, unassigned=True), TABLE) == "unassigned"
