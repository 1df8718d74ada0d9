"""What `rk fsck` prints."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cli.common.names import Names
from cli.diagnose.fsck import FINDINGS_SHOWN, moving, show_findings, show_moving
from cli.diagnose.fsck_deep import read_rows, summary
from cli.tablets import deep
from coord.rpc.wire import Code, RpcError
from regions.diagnose.fsck import ClusterView, Finding, FoundTransition
from regions.messages.codes import TOO_STALE
from regions.records.members import Member, Storage
from regions.records.model import RegionRecord, RegionState, ServerRecord, TableRecord, TabletState, TransitionRecord
from regionserver.kv.messages import KvRow
from regionserver.tablets.messages import REPLICA_FAILED, TabletPage, TabletScan


def printed(findings: list[Finding]) -> list[str]:
    text = io.StringIO()
    show_findings(findings, Names([], None), Console(file=text, width=200))
    return text.getvalue().splitlines()


def test_many_findings_of_one_problem_hide_no_other() -> None:
    """A dead server leaves a finding for each of its tablets: the first are printed, all are counted."""
    many = [Finding("few replicas", f"t.{number}", f"tablet {number}") for number in range(FINDINGS_SHOWN + 130)]
    lines = printed([*many, Finding("hole", "x", "table x has a hole")])
    assert sum("tablet " in one for one in lines) == FINDINGS_SHOWN
    assert "hole: table x has a hole" in lines
    assert "few replicas: and 130 more (--json has all)" in lines
    assert lines[-1] == f"{FINDINGS_SHOWN + 131} errors"


def test_findings_at_the_limit_are_all_printed() -> None:
    lines = printed([Finding("few replicas", f"t.{number}", "") for number in range(FINDINGS_SHOWN)])
    assert len(lines) == FINDINGS_SHOWN + 1
    assert printed([]) == ["nothing is wrong"]


def test_what_is_in_transition_is_said_and_is_no_finding() -> None:
    """A region whose opens fail is not open, and fsck must not look as if all were well. A parked one is a finding.

    Tried: without `not one.record.parked` the parked one is there, too.
    """

    def transition(region: str, attempt: int, error: str, *, parked: bool = False) -> FoundTransition:
        record = TransitionRecord(
            region, "t", 0, RegionState.OFFLINE, None, None, attempt=attempt, last_error=error, parked=parked
        )
        return FoundTransition(f"/{region}", record, 1)

    view = ClusterView(
        transitions=[transition("t.1", 0, ""), transition("t.2", 4, "no disk"), transition("t.3", 8, "x", parked=True)]
    )
    text = io.StringIO()
    show_moving(moving(view), Names([], None), Console(file=text, width=200))
    assert text.getvalue().splitlines() == [
        "2 replicas in transition, which is no fault yet (rk status, rk health)",
        "    t.2-0 OFFLINE: 4 opens failed, last error: no disk",
    ]


SERVERS = [ServerRecord(f"s{number}", "h", number, 7, tablets=True) for number in (1, 2, 3)]


def tablets(*names: str, state: TabletState = TabletState.RUNNING, servers: int = 3) -> ClusterView:
    """A view of tablets, each with three members, of which the first `servers` are on live servers."""
    members = tuple(Member(number, f"s{number}") for number in (1, 2, 3))
    regions = [RegionRecord("t", name, members=members, next_number=4, state=state) for name in names]
    table = TableRecord("t", "orders", replication=3, storage=Storage.TABLET)
    return ClusterView([table], {"t": regions}, servers=SERVERS[:servers])


class Servers:
    """Servers with two pages of rows in each replica; some replicas answer with an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: dict[tuple[str, str], RpcError] = {}
        monkeypatch.setattr(deep, "ask_server", self.ask)

    def ask(self, server: ServerRecord, message: TabletScan, _expect: type, _timeout_s: float) -> TabletPage:
        assert message.at_least > 0, "the leader alone would answer"
        error = self.errors.get((message.tablet, server.uuid))
        if message.start and error is not None:
            raise error
        rows = [KvRow("a", b"123"), KvRow("b", b"")]
        return TabletPage(rows, "" if message.start else "m", index=9, time_ms=1)


def test_deep_reads_every_replica_of_a_tablet(monkeypatch: pytest.MonkeyPatch) -> None:
    Servers(monkeypatch)
    found, findings = read_rows(tablets("t.0", "t.1"), 0.0, lambda _text: None)
    assert (found.regions, found.replicas, found.rows, found.size_bytes) == (0, 6, 24, 60)
    assert (found.unread, findings) == ([], [])
    assert summary(found) == ["read 24 rows, 0.0 MB, of 6 replicas of tablets"]


def test_deep_names_failed_replicas_and_those_that_it_could_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch)
    servers.errors["t.0", "s2"] = RpcError(REPLICA_FAILED, "row 'b' is damaged: its checksum does not match")
    servers.errors["t.1", "s1"] = RpcError(Code.TIMEOUT, "h:1 did not reply within 30 s")
    servers.errors["t.1", "s2"] = RpcError(TOO_STALE, "entry 1 is not applied here")
    found, [finding] = read_rows(tablets("t.0", "t.1", servers=2), 0.0, lambda _text: None)
    assert finding.subject == "t.0-2"
    assert finding.text == "t.0-2 on server s2 cannot be read: row 'b' is damaged: its checksum does not match"
    assert found.unread == [
        "t.0-3: server s3 is not registered",
        "t.1-1: h:1 did not reply within 30 s",
        "t.1-2: entry 1 is not applied here",
        "t.1-3: server s3 is not registered",
    ]


def test_deep_does_not_read_tablets_that_are_being_created(monkeypatch: pytest.MonkeyPatch) -> None:
    Servers(monkeypatch)
    found, _ = read_rows(tablets("t.0", state=TabletState.CREATING), 0.0, lambda _text: None)
    assert (found.replicas, found.unread) == (0, ["t.0: CREATING"])
