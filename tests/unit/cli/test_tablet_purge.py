"""`rk tablet purge`: what the servers are asked, and what the operator reads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from click.testing import CliRunner

from cli.common.errors import CliError
from cli.main import rk
from cli.tablets.upkeep import quarantine
from coord.rpc.wire import RpcError
from regions.records.model import ServerRecord
from regionserver.tablets.upkeep.messages import PurgeQuarantine, QuarantinedReplica, QuarantineList

UUIDS: Final = ("a" * 32, "b" * 32)
HOUR_MS: Final = 3_600_000


class FakeServers:
    local: Any = None

    def __init__(self) -> None:
        self.asked: list[PurgeQuarantine] = []
        self.silent: set[str] = set()
        self.folders = [QuarantinedReplica("t.1", "t", 1, 5_000_000, 100 * HOUR_MS, True)]

    def servers(self) -> list[ServerRecord]:
        return [
            ServerRecord(uuid, "127.0.0.1", 7000 + at, 1, peer_port=8000 + at, tablets=True)
            for at, uuid in enumerate(UUIDS)
        ]

    def ask(self, server: ServerRecord, message: PurgeQuarantine, _expect: type, _timeout_s: float = 0.0) -> Any:
        self.asked.append(message)
        if server.uuid in self.silent:
            raise RpcError("timeout", "no answer")
        return QuarantineList(server.uuid, 168 * HOUR_MS, self.folders)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    fake = FakeServers()

    @contextlib.contextmanager
    def opened(_given: Any) -> Iterator[FakeServers]:
        yield fake

    monkeypatch.setattr(quarantine, "open_cluster", opened)
    monkeypatch.setattr(quarantine, "ask_server", fake.ask)
    return fake


def run(*words: str, code: int = 0, **more: Any) -> str:
    found = CliRunner().invoke(rk, ["tablet", "purge", *words], **more)
    if isinstance(found.exception, CliError):
        assert found.exception.exit_code == code, found.exception.message
        return f"{found.output} {found.exception.message} {found.exception.hint}"
    assert found.exit_code == code, (found.output, found.exception)
    return " ".join(found.output.split())


def test_all_servers_are_asked_for_what_is_past_its_time(servers: FakeServers) -> None:
    text = run()
    assert {one.recipient for one in servers.asked} == set(UUIDS)
    assert {(one.tablet, one.older_than_ms, one.force, one.dry_run) for one in servers.asked} == {
        ("", -1, False, False)
    }
    assert "4.2 d" in text
    assert "2 removed, 10" in text


def test_a_dry_run_says_sizes_and_ages_and_is_not_confirmed(servers: FakeServers) -> None:
    text = run("t", "--server", UUIDS[0], "--older-than", "2d", "--force", "--dry-run")
    assert servers.asked == [PurgeQuarantine(UUIDS[0], "t", 48 * HOUR_MS, True, True)]
    assert "5.0 MB" in text or "5 MB" in text
    assert "1 would be removed" in text


def test_what_is_named_and_not_past_its_time_is_refused(servers: FakeServers) -> None:
    servers.folders = [QuarantinedReplica("t.1", "t", 1, 5_000_000, HOUR_MS)]
    assert "refused: the time of 2 former replicas is not over" in run("t", code=1)
    # Without a name this is not an error: the command removes the folders that are due.
    assert "0 removed" in run()


def test_force_asks_first(servers: FakeServers) -> None:
    assert "nothing was removed" in run("--force", code=1, input="n\n")
    assert servers.asked == []
    assert "nothing was removed" in run("--force", "--json", code=1)
    run("--force", "--yes")
    assert all(one.force for one in servers.asked)


def test_json_names_every_folder_and_who_did_not_answer(servers: FakeServers) -> None:
    servers.silent = {UUIDS[1]}
    found = CliRunner().invoke(rk, ["tablet", "purge", "--json"])
    assert found.exit_code == 1
    shown = json.loads(found.output)
    assert shown["silent"] == [UUIDS[1]]
    assert shown["servers"][0]["folders"][0]["tablet"] == "t"
