"""`rk tablet copy|jobs|cancel`: what the servers are asked, and what the operator reads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from click.testing import CliRunner

from cli.common.errors import CliError
from cli.common.lookup import FoundRegion
from cli.main import rk
from cli.tablets import copies
from coord.rpc.wire import RpcError
from regions.messages import OwnReplica, ReplicaState, TabletReport, TabletRole
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord, ServerRecord
from regionserver.tablets.copying.messages import (
    CancelCopy,
    CopyJob,
    CopyJobList,
    CopyOutcome,
    CopySource,
    CopyState,
    ListCopyJobs,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)

UUIDS: Final = ("a" * 32, "b" * 32, "c" * 32)
TABLET: Final = "t1.0001"
MEMBERS: Final = tuple(Member(number, uuid) for number, uuid in enumerate(UUIDS, 1))


def shown(number: int, state: ReplicaState, role: TabletRole = TabletRole.FOLLOWER) -> TabletReport:
    return TabletReport(TABLET, "t1", number, state, 7, role)


class FakeServers:
    """Three servers: the first leads, the second follows, the third is FAILED."""

    local: Any = None

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[type, Any] = {}
        self.silent: set[str] = set()
        self.views: dict[str, OwnReplica] = {
            UUIDS[0]: OwnReplica(shown(1, ReplicaState.RUNNING, TabletRole.LEADER), MEMBERS),
            UUIDS[1]: OwnReplica(shown(2, ReplicaState.RUNNING), MEMBERS, last_index=50, last_term=7),
            UUIDS[2]: OwnReplica(shown(3, ReplicaState.FAILED), last_index=40, last_term=6),
        }  # fmt: skip

    def servers(self) -> list[ServerRecord]:
        return [
            ServerRecord(uuid, "127.0.0.1", 7000 + at, 1, peer_port=8000 + at, tablets=True)
            for at, uuid in enumerate(UUIDS)
        ]

    def ask(self, server: ServerRecord, message: Any, _expect: type, timeout_s: float = 0.0) -> Any:
        self.asked.append((server.uuid, message))
        if server.uuid in self.silent:
            raise RpcError("timeout", "no answer")
        answer = self.answers[type(message)]
        if isinstance(answer, Exception):
            raise answer
        return answer(server.uuid) if callable(answer) else answer


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    fake = FakeServers()

    @contextlib.contextmanager
    def opened(_given: Any) -> Iterator[FakeServers]:
        yield fake

    region = RegionRecord("t1", TABLET, "b", "m", members=MEMBERS, next_number=4)
    monkeypatch.setattr(copies, "open_cluster", opened)
    monkeypatch.setattr(copies, "ask_server", fake.ask)
    monkeypatch.setattr(copies, "region_in_store", lambda _cluster, _name: FoundRegion(region, None))
    monkeypatch.setattr(copies, "views_of", lambda _servers, _tablet: fake.views)
    return fake


def run(*words: str, code: int = 0) -> str:
    found = CliRunner().invoke(rk, ["tablet", *words])
    if isinstance(found.exception, CliError):
        assert found.exception.exit_code == code, found.exception.message
        return f"{found.exception.message} {found.exception.hint}"
    assert found.exit_code == code, (found.output, found.exception)
    return " ".join(found.output.split())


ORDER: Final = StartTabletCopy(
    UUIDS[2], TABLET, 3, MemberRole.VOTER, 7, CopySource(1, UUIDS[0], "127.0.0.1", 8000),
    SeenReplica(3, ReplicaState.FAILED, 6, 40), "t1", "b", "m",
)  # fmt: skip


def test_copy_asks_the_server_that_gets_the_copy(servers: FakeServers) -> None:
    done = CopyJob(4, TABLET, 3, CopyState.DONE, UUIDS[0], 12_000_000, 12_000_000, 1, 1000, 3500)
    servers.answers = {
        StartTabletCopy: TabletCopyAnswer(CopyOutcome.STARTED, job=4),
        ListCopyJobs: CopyJobList(UUIDS[2], [done]),
    }
    said = run("copy", TABLET, "--to", UUIDS[2])
    assert servers.asked[0] == (UUIDS[2], ORDER)
    assert f"member 3 of {TABLET}: 127.0.0.1:7000 -> 127.0.0.1:7002" in said
    assert "DONE, 12 MB in 2.50 s" in said
    assert json.loads(CliRunner().invoke(rk, ["tablet", "copy", TABLET, "--to", UUIDS[2], "--json"]).output)["job"] == 4


def test_copy_from_another_server(servers: FakeServers) -> None:
    servers.answers = {StartTabletCopy: TabletCopyAnswer(CopyOutcome.BAD_TERM, "the sender's term is over", term=9)}
    said = run("copy", TABLET, "--to", UUIDS[2], "--from", UUIDS[1], code=1)
    assert servers.asked[0][1].source.number == 2
    assert "BAD_TERM" in said
    assert "Nothing was changed" in said


def test_a_dry_run_asks_for_nothing(servers: FakeServers) -> None:
    assert "would copy member 3" in run("copy", TABLET, "--to", UUIDS[2], "--dry-run")
    assert servers.asked == []


def test_copies_that_make_no_sense(servers: FakeServers) -> None:
    assert "same server" in run("copy", TABLET, "--to", UUIDS[2], "--from", UUIDS[2], code=2)
    del servers.views[UUIDS[0]]
    assert "no server leads" in run("copy", TABLET, "--to", UUIDS[2], code=1)
    assert "no live server" in run("copy", TABLET, "--to", "elsewhere", code=4)


def test_a_copy_that_fails_says_why(servers: FakeServers) -> None:
    failed = CopyJob(4, TABLET, 3, CopyState.FAILED, UUIDS[0], reason="the source has died", began_ms=1, ended_ms=2)
    servers.answers = {
        StartTabletCopy: TabletCopyAnswer(CopyOutcome.STARTED, job=4),
        ListCopyJobs: CopyJobList(UUIDS[2], [failed]),
    }
    assert "the source has died" in run("copy", TABLET, "--to", UUIDS[2], code=1)


def test_jobs_of_all_servers(servers: FakeServers) -> None:
    waiting = CopyJob(2, TABLET, 3, CopyState.WAITING, UUIDS[0], reason="the source is busy", began_ms=1000)
    running = CopyJob(1, "t1.0002", 3, CopyState.ROWS, UUIDS[0], 3_000_000, 12_000_000, 1_000_000, 1000)
    servers.answers = {ListCopyJobs: lambda uuid: CopyJobList(uuid, [waiting, running] if uuid == UUIDS[2] else [])}
    servers.silent = {UUIDS[1]}
    found = json.loads(CliRunner().invoke(rk, ["tablet", "jobs", "--json"]).output)
    assert [one["job"] for server in found["servers"] for one in server["jobs"]] == [2, 1]
    assert found["silent"] == [UUIDS[1]]
    wide = CliRunner(env={"COLUMNS": "300"}).invoke(rk, ["tablet", "jobs"]).output
    assert "WAITING" in wide
    assert "the source is busy" in wide
    assert "9.0 MB" in wide  # what is left
    assert "does not answer" in wide


def test_cancel(servers: FakeServers) -> None:
    job = CopyJob(2, TABLET, 3, CopyState.ROWS, UUIDS[0])
    servers.answers = {CancelCopy: CopyJobList(UUIDS[2], [job])}
    assert f"canceled: the copy of {TABLET}" in run("cancel", f"{UUIDS[2]}/2")
    assert servers.asked == [(UUIDS[2], CancelCopy(2, UUIDS[2]))]
    servers.answers = {CancelCopy: RpcError("bad_request", "no copy job 7 runs on this server")}
    assert "no copy job 7" in run("cancel", f"{UUIDS[2]}/7", code=1)
    assert "is no job" in run("cancel", "7", code=2)
