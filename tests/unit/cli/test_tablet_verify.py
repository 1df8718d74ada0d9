"""`rk tablet verify`: which entries are compared, and what the operator reads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from click.testing import CliRunner

from cli.common.errors import CliError
from cli.main import rk
from cli.tablets.members import FoundTablet
from cli.tablets.upkeep import verify
from coord.rpc.wire import RpcError
from regions.messages import OwnReplica, ReplicaState, TabletReport, TabletRole
from regions.messages.heartbeat import LeaderReport
from regions.records.members import Member
from regions.records.model import ServerRecord
from regionserver.tablets.digests.messages import DigestList, ReplicaDigest, ShowDigests

UUIDS: Final = ("a" * 32, "b" * 32, "c" * 32)
TABLET: Final = "t1.0001"
MEMBERS: Final = tuple(Member(number, uuid) for number, uuid in enumerate(UUIDS, 1))
GOOD, BAD = b"g" * 16, b"b" * 16


class FakeServers:
    local: Any = None

    def __init__(self) -> None:
        self.asked: list[ShowDigests] = []
        self.silent: set[str] = set()
        #: Digests of each member, in the order of the questions; the last one is repeated.
        self.known: dict[str, list[dict[int, bytes]]] = {uuid: [{50: GOOD}] for uuid in UUIDS}

    def servers(self) -> list[ServerRecord]:
        return [
            ServerRecord(uuid, "127.0.0.1", 7000 + at, 1, peer_port=8000 + at, tablets=True)
            for at, uuid in enumerate(UUIDS)
        ]

    def ask(self, server: ServerRecord, message: ShowDigests, _expect: type, _timeout_s: float = 0.0) -> Any:
        if server.uuid in self.silent:
            raise RpcError("timeout", "no answer")
        [asked] = message.asked
        answers = self.known[server.uuid]
        found = answers[0]
        if asked.index:
            self.asked.append(message)
            if len(answers) > 1:
                answers.pop(0)
        number = UUIDS.index(server.uuid) + 1
        return DigestList(server.uuid, [ReplicaDigest(TABLET, number, 7, 50, max(found), sorted(found.items()))])


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    fake = FakeServers()

    @contextlib.contextmanager
    def opened(_given: Any) -> Iterator[FakeServers]:
        yield fake

    report = TabletReport(TABLET, "t1", 1, ReplicaState.RUNNING, 7, TabletRole.LEADER, leader=LeaderReport(MEMBERS))
    found = FoundTablet(TABLET, fake.servers()[0], OwnReplica(report, MEMBERS), fake.servers())
    monkeypatch.setattr(verify, "open_cluster", opened)
    monkeypatch.setattr(verify, "ask_server", fake.ask)
    monkeypatch.setattr(verify, "find_leader", lambda _cluster, _name: found)
    monkeypatch.setattr(verify, "_PAUSE_S", 0.0)
    return fake


def run(*words: str, code: int = 0) -> str:
    found = CliRunner().invoke(rk, ["tablet", "verify", TABLET, *words])
    if isinstance(found.exception, CliError):
        assert found.exception.exit_code == code, found.exception.message
        return f"{found.output} {found.exception.message} {found.exception.hint}"
    assert found.exit_code == code, (found.output, found.exception)
    return " ".join(found.output.split())


def test_equal_members_are_compared_after_the_leaders_last_entry(servers: FakeServers) -> None:
    assert f"all 3 members of {TABLET} have the same rows after entry 50" in run()
    assert {one.asked[0].index for one in servers.asked} == {50}


def test_a_member_that_differs_is_named(servers: FakeServers) -> None:
    servers.known[UUIDS[2]] = [{50: BAD}]
    text = run(code=1)
    assert "DIFFERS" in text
    assert "member 3 of t1.0001 differs from a majority after entry 50" in text


def test_without_a_majority_the_operator_decides(servers: FakeServers) -> None:
    servers.known[UUIDS[2]] = [{50: BAD}]
    servers.silent = {UUIDS[1]}
    assert "no majority agrees" in run(code=1)


def test_a_silent_member_is_not_equal(servers: FakeServers) -> None:
    servers.silent = {UUIDS[1]}
    text = run(code=1)
    assert "not compared" in text
    assert "not all members of t1.0001 could be compared: 2 on " in text


def test_under_writes_members_are_asked_until_they_have_an_entry_in_common(servers: FakeServers) -> None:
    servers.known[UUIDS[1]] = [{51: GOOD}, {50: GOOD, 60: BAD}]
    found = CliRunner().invoke(rk, ["tablet", "verify", TABLET, "--json"])
    assert found.exit_code == 0, found.output
    shown = json.loads(found.output)
    assert (shown["index"], shown["verdict"], shown["missing"]) == (50, "equal", [])
    assert shown["digests"]["2"] == GOOD.hex()
