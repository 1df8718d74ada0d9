"""`rk tablet unsafe-change-config`: refusals, questions to servers, and warnings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from click.testing import CliRunner

from cli.common.errors import CliError
from cli.common.lookup import FoundRegion
from cli.main import rk
from cli.tablets.upkeep import rescue
from regions.messages import NoteForcedConfig, OwnReplica, ReplicaState, TabletReport, TabletRole
from regions.messages.heartbeat import LeaderReport
from regions.records.members import ConfigId, Member
from regions.records.model import RegionRecord, ServerRecord
from regionserver.tablets.rescue.messages import ConfigurationForced, ForceConfiguration

UUIDS: Final = tuple(letter * 32 for letter in "abcde")
TABLET: Final = "t1.0001"
MEMBERS: Final = tuple(Member(number, uuid) for number, uuid in enumerate(UUIDS, 1))


def view(number: int, last: tuple[int, int], state: ReplicaState = ReplicaState.RUNNING, term: int = 7) -> OwnReplica:
    report = TabletReport(TABLET, "t1", number, state, term, TabletRole.FOLLOWER)
    return OwnReplica(report, MEMBERS, ConfigId(1, 1), last_term=last[0], last_index=last[1])


class FakeServers:
    """Five members, of which the first two are left; the second one's log reaches further."""

    local: Any = None

    def __init__(self) -> None:
        self.asked: list[tuple[str, ForceConfiguration]] = []
        self.why = ""
        self.notes: list[NoteForcedConfig] = []
        self.is_without_master = False
        self.views = {UUIDS[0]: view(1, (6, 90)), UUIDS[1]: view(2, (7, 40), term=9)}

    def servers(self) -> list[ServerRecord]:
        return [
            ServerRecord(uuid, "127.0.0.1", 7000 + at, 1, peer_port=8000 + at, tablets=True)
            for at, uuid in enumerate(UUIDS)
        ]

    def ask_master(self, message: Any, _expect: type, _timeout_s: float) -> None:
        if self.is_without_master:
            raise CliError("no master is active")
        self.notes.append(message)

    def ask(self, server: ServerRecord, message: ForceConfiguration, _expect: type, _timeout_s: float = 0.0) -> Any:
        self.asked.append((server.uuid, message))
        if not self.why:
            kept = tuple(one for one in MEMBERS if one.number in message.keep)
            report = TabletReport(
                TABLET, "t1", 2, ReplicaState.RUNNING, 11, TabletRole.LEADER, leader=LeaderReport(kept)
            )  # fmt: skip
            self.views[server.uuid] = OwnReplica(report, kept)
        return ConfigurationForced(self.why)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    fake = FakeServers()

    @contextlib.contextmanager
    def opened(_given: Any) -> Iterator[FakeServers]:
        yield fake

    region = RegionRecord("t1", TABLET, "b", "m", members=MEMBERS, next_number=6)
    monkeypatch.setattr(rescue, "open_cluster", opened)
    monkeypatch.setattr(rescue, "ask_server", fake.ask)
    monkeypatch.setattr(rescue, "region_in_store", lambda _cluster, _name: FoundRegion(region, None))
    monkeypatch.setattr(rescue, "views_of", lambda _servers, _tablet: dict(fake.views))
    return fake


def run(*words: str, code: int = 0, **more: Any) -> str:
    found = CliRunner().invoke(rk, ["tablet", "unsafe-change-config", TABLET, *words], **more)
    if isinstance(found.exception, CliError):
        assert found.exception.exit_code == code, found.exception.message
        return f"{found.output} {found.exception.message} {found.exception.hint}"
    assert found.exit_code == code, (found.output, found.exception)
    return " ".join(found.output.split())


BOTH: Final = ("--keep", UUIDS[0], "--keep", UUIDS[1])


def test_the_longest_log_gets_the_order_with_a_term_above_all(servers: FakeServers) -> None:
    text = run(*BOTH, "--yes")
    assert servers.asked == [(UUIDS[1], ForceConfiguration(UUIDS[1], TABLET, 2, 7, 40, [1, 2], 10))]
    assert "ACKNOWLEDGED WRITES AFTER THAT ENTRY ARE LOST" in text
    assert "has a leader again" in text


def test_it_asks_first(servers: FakeServers) -> None:
    assert "nothing was changed" in run(*BOTH, code=1, input="n\n")
    assert "WARNING" in run(*BOTH, "--dry-run")
    assert "nothing was changed" in run(*BOTH, "--json", code=1)
    assert servers.asked == []


def test_it_is_refused_while_a_majority_lives(servers: FakeServers) -> None:
    servers.views[UUIDS[2]] = view(3, (7, 40))
    assert "3 of 5 voters of t1.0001 run, which is a majority" in run(*BOTH, "--yes", code=1)
    report = TabletReport(TABLET, "t1", 3, ReplicaState.RUNNING, 9, TabletRole.LEADER, leader=LeaderReport(MEMBERS))
    servers.views = {UUIDS[2]: OwnReplica(report, MEMBERS)}
    assert "leads t1.0001" in run("--keep", UUIDS[2], "--yes", code=1)
    assert servers.asked == []


def test_a_member_that_does_not_run_cannot_stay_and_the_longest_log_must(servers: FakeServers) -> None:
    assert "has no running replica" in run("--keep", UUIDS[4], "--yes", code=1)
    assert "reaches further" in run("--keep", UUIDS[0], "--yes", code=1)
    # A FAILED replica has no usable rows, and does not count as live.
    servers.views[UUIDS[2]] = view(3, (9, 99), ReplicaState.FAILED)
    assert "has no running replica" in run("--keep", UUIDS[2], "--yes", code=1)
    assert servers.asked == []
    run(*BOTH, "--yes")


def test_a_refusal_of_the_server_is_an_error(servers: FakeServers) -> None:
    servers.why = "its log ends at entry 41 of term 7 now: look again"
    assert "its log ends at entry 41" in run(*BOTH, "--yes", code=1)


def test_the_history_gets_a_record(servers: FakeServers) -> None:
    """Without a master the tablet goes on, and the command says that the record is missing."""
    run("--keep", UUIDS[1], "--dry-run")
    assert servers.notes == []
    assert "no record" not in run("--keep", UUIDS[1], "--yes")
    assert servers.notes == [NoteForcedConfig(TABLET, UUIDS[1], (2,), (1, 3, 4, 5), 7, 40)]


def test_without_a_master_the_history_has_no_record(servers: FakeServers) -> None:
    servers.is_without_master = True
    assert "the history has no record of this: no master is active" in run("--keep", UUIDS[1], "--yes")
