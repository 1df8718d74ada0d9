"""`rk region` on tablets: successful commands print how many replicas take part, others an error sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cli import regions
from cli.common.errors import ExitStatus
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
    as_of = None

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.regions = [ms.RegionStatus(REGION, MEMBERS)]
        self.tables = [TABLE]

    def servers(self) -> list[object]:
        return []

    def ask_master(self, message: Any, _expect: type, **_options: object) -> Any:
        self.asked.append(message)
        match message:
            case ms.ListTables():
                return ms.Tables([ms.TableSummary(one, 1, 3, 3, 0, 0) for one in self.tables])
            case ms.DescribeTable():
                [table] = [one for one in self.tables if message.table in (one.name, one.table_id)]
                return ms.Regions(table, self.regions)
            case ms.MoveTablet():
                return ms.MemberIntent("t.0", "accepted")
            case ms.SetRegionIntent():
                return ms.Accepted("t.0 is closed: 0 of 3 replicas take part")
            case _:
                return ms.Regions(TABLE, self.regions)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> OneTablet:
    found = OneTablet()

    @contextlib.contextmanager
    def opened(_given: object, **_options: object) -> Iterator[OneTablet]:
        yield found

    monkeypatch.setattr(regions, "open_cluster", opened)
    return found


@pytest.mark.parametrize(("options", "source"), [((), ""), (("--replica", "2"), "b")])
def test_a_tablet_moves_a_member(cluster: OneTablet, options: tuple[str, ...], source: str) -> None:
    """As with `rk tablet move`."""
    assert run(["region", "move", "orders:k", "--wait", "0", *options]) == 0
    assert cluster.asked[-1] == ms.MoveTablet("t.0", "", source)
    assert run(["region", "move", "orders:k", "--dry-run"]) == 0
    assert cluster.asked[-1] == ms.MoveTablet("t.0", "", "", dry_run=True)
    assert run(["region", "move", "orders:k", "--replica", "9"]) == ExitStatus.NOT_FOUND


def test_a_closed_tablet_is_not_said_to_be_on_its_servers(
    cluster: OneTablet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["region", "unassign", "orders:k"]) == 0
    assert capsys.readouterr().out == "t.0 is closed: 0 of 3 replicas take part\n"


def test_regions_are_listed_by_state_and_number(cluster: OneTablet, capsys: pytest.CaptureFixture[str]) -> None:
    """The states are the words of the list."""
    assert run(["region", "list", "--state", "?"]) == 0
    assert "t.0" in capsys.readouterr().out
    assert run(["region", "list", "--state", "parked"]) == 0
    assert capsys.readouterr().out == "no such region\n"
    cluster.regions = [ms.RegionStatus(msgspec.structs.replace(REGION, region_id=f"t.{n}"), MEMBERS) for n in range(3)]
    assert run(["region", "list", "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert ("t.1" in shown, "t.2" in shown, "… and 1 more: --limit 0 shows all" in shown) == (True, False, True)


def test_a_table_without_a_row_in_the_list_has_no_heading(
    cluster: OneTablet, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tried: with a heading for each table the second one is there, over nothing."""
    cluster.tables = [TABLE, msgspec.structs.replace(TABLE, table_id="u", name="invoices")]
    assert run(["region", "list", "--limit", "1"]) == 0
    shown = capsys.readouterr().out
    assert ("orders" in shown, "invoices" in shown) == (True, False)
    assert "… and 1 more" in shown


def test_members_of_closed_tablets_are_not_open() -> None:
    """The members keep their servers and their files."""
    assert replica_state(MEMBERS[0], REGION, TABLE) == "?", "no report yet"
    assert replica_state(msgspec.structs.replace(MEMBERS[0], takes_part=True), REGION, TABLE) == "open"
    disabled = msgspec.structs.replace(TABLE, intent=TableIntent.DISABLED)
    assert replica_state(MEMBERS[0], REGION, disabled) == "closed"
    assert replica_state(MEMBERS[0], msgspec.structs.replace(REGION, unassigned=True), TABLE) == "unassigned"
