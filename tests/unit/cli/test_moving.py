"""`rk tablet move|intents`, `rk server retire`, `rk table alter --replicas`, over a master that changes members."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli import replicas
from cli import server as server_commands
from cli.common.asking.refusals import refusal
from cli.common.errors import ExitStatus, UnreachableError
from cli.common.lookup import FoundRegion
from cli.main import run
from cli.tablets import members, moving, reading, waiting
from coord.rpc.server import RpcError
from regions.records.model import ServerRecord
from tests.unit.master.tablets.changing import ChangingBench, changing_world
from tests.unit.master.tablets.test_member_requests import ALL, a_way, ask, first, places


class MasterCluster:
    """A cluster whose active master is a `ChangingBench`; time passes while a command sleeps."""

    local = None

    def __init__(self, world: ChangingBench) -> None:
        self.world = world
        #: The active master dies at this many looks from now; 0: it does not.
        self.dies_in = 0
        self.looks = 0

    def servers(self) -> list[ServerRecord]:
        return [one.record for one in self.world.servers.servers.values() if one.lives]

    def ask_master(self, message: Any, expect: type, **_options: object) -> Any:
        found = ask(self.world, message)
        if isinstance(found, RpcError):
            raise refusal(found, message) from found
        assert isinstance(found, expect), found
        return found

    def sleep(self, _seconds: float) -> None:
        self.looks += 1
        if self.looks == self.dies_in:
            self.world.fail_over()
        self.world.turn(1, 0.5)

    def monotonic(self) -> float:
        return self.looks * 0.5


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MasterCluster:
    """Return five servers and a table of four tablets with three members each."""
    found = MasterCluster(changing_world(tmp_path, monkeypatch))

    @contextlib.contextmanager
    def opened(_given: object, **_options: object) -> Iterator[MasterCluster]:
        yield found

    for module in (moving, members, server_commands, replicas):
        monkeypatch.setattr(module, "open_cluster", opened)
    monkeypatch.setattr(moving, "region_in_store", lambda *_: FoundRegion(first(found.world), None))
    monkeypatch.setattr(moving, "_job_of", lambda *_: None)
    monkeypatch.setattr(reading, "name_former", lambda *_: None)
    monkeypatch.setattr(server_commands, "name_former", lambda *_: None)
    monkeypatch.setattr(waiting.time, "sleep", found.sleep)
    monkeypatch.setattr(waiting.time, "monotonic", found.monotonic)
    return found


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> tuple[str, str]:
    """Run a command, check its exit status, and return what it has printed."""
    found = run(list(words))
    out, err = capsys.readouterr()
    assert found == status, err
    return out, err


def name(uuid: str) -> str:
    """Return how commands name a server: its address."""
    return f"h:{10 * int(uuid[1:])}"


@pytest.mark.parametrize("dies_in", [0, 2, 5])
def test_a_move_is_shown_step_by_step(cluster: MasterCluster, capsys: pytest.CaptureFixture[str], dies_in: int) -> None:
    """TC-19. Also when the active master dies in between: only the intent counts."""
    cluster.dies_in = dies_in
    region = first(cluster.world)
    source, target = a_way(cluster.world, region)
    out, err = said(capsys, "tablet", "move", "x:k", "--from", name(source), "--to", name(target))
    assert f"{region.region_id}: {name(source)} -> {name(target)} (cause e" in out
    assert places(first(cluster.world)) == places(region) - {source} | {target}
    assert "moved" in err
    assert len(err.splitlines()) >= 3


def test_a_dry_run_changes_nothing(cluster: MasterCluster, capsys: pytest.CaptureFixture[str]) -> None:
    region = first(cluster.world)
    source, target = a_way(cluster.world, region)
    out, _ = said(capsys, "tablet", "move", "x:k", "--to", name(target), "--dry-run", "--json")
    found = json.loads(out)
    assert found["dry_run"]
    assert found["answer"]["moves"][0]["source"] == source
    assert said(capsys, "tablet", "intents")[0] == "nothing is wanted that has not come true\n"


def test_a_move_that_takes_long_goes_on(cluster: MasterCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with what the move waits for; the list shows the move; --cancel withdraws it."""
    cluster.world.servers.loses = 10_000
    source, target = a_way(cluster.world, first(cluster.world))
    way = ("--from", name(source), "--to", name(target))
    _, err = said(capsys, "tablet", "move", "x:k", *way, "--wait", "3", status=ExitStatus.REFUSED)
    assert "is not finished after 3 s" in err
    assert "It goes on by itself" in err
    out, _ = said(capsys, "tablet", "intents")
    assert name(source) in out
    assert name(target) in out
    [listed] = json.loads(said(capsys, "tablet", "intents", "--json")[0])["intents"]
    assert (listed["source"], listed["target"]) == (source, target)
    out, _ = said(capsys, "tablet", "move", "x:k", "--cancel")
    assert f"canceled: {name(source)} -> {name(target)}" in out
    assert "intents" not in said(capsys, "tablet", "intents")[0]


def test_what_newcomers_get_wrong(cluster: MasterCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence each, with the servers' names, and nothing is changed."""
    region = first(cluster.world)
    source, target = a_way(cluster.world, region)
    _, err = said(capsys, "tablet", "move", "x:k", status=ExitStatus.USAGE)
    assert "give --to SERVER, --from SERVER or both; or --cancel" in err
    _, err = said(capsys, "tablet", "move", "x:k", "--to", "server-99", status=ExitStatus.NOT_FOUND)
    assert "no live server 'server-99'" in err
    same = ("--from", name(source), "--to", name(source))
    assert "the same server" in said(capsys, "tablet", "move", "x:k", *same, status=ExitStatus.USAGE)[1]
    other = min(ALL - places(region) - {target})
    wrong = ("--from", name(other), "--to", name(target))
    _, err = said(capsys, "tablet", "move", "x:k", *wrong, status=ExitStatus.REFUSED)
    assert f"{name(other)} has no member of the tablet" in err
    assert (
        said(capsys, "tablet", "move", "x:k", "--cancel", status=ExitStatus.NOT_FOUND)[1].count("nothing to cancel")
        == 1
    )


def test_a_learner_is_added_and_removed(cluster: MasterCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """TC-01. A voter more is refused with what helps."""
    uuid = min(ALL - places(first(cluster.world)))
    add = ("tablet", "change-config", "add", "x:k", name(uuid))
    assert "would be removed at once" in said(capsys, *add, "--role", "voter", status=ExitStatus.REFUSED)[1]
    assert f"{name(uuid)} gets a learner" in said(capsys, *add, "--dry-run")[0]
    assert f"{name(uuid)} gets a learner" in said(capsys, *add)[0]
    cluster.world.until(lambda: uuid in places(first(cluster.world)))
    cluster.world.until(cluster.world.is_running)
    assert f"{name(uuid)} loses a learner" in said(capsys, "tablet", "change-config", "remove", "x:k", name(uuid))[0]
    cluster.world.until(lambda: uuid not in places(first(cluster.world)))


def test_a_shared_region_is_no_tablet(
    cluster: MasterCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = msgspec.structs.replace(first(cluster.world), members=(), next_number=0)
    monkeypatch.setattr(moving, "region_in_store", lambda *_: FoundRegion(shared, None))
    _, err = said(capsys, "tablet", "move", "x:k", "--to", name("s1"), status=ExitStatus.REFUSED)
    assert "is no tablet" in err
    assert "rk region move" in err


def test_a_server_is_retired(cluster: MasterCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """TC-21. With its progress, over a change of masters."""
    cluster.dies_in = 3
    out, _ = said(capsys, "server", "retire", name("s1"), "--dry-run")
    assert out.startswith(f"would empty {name('s1')}: ")
    out, err = said(capsys, "server", "retire", name("s1"))
    assert out == f"{name('s1')} is empty, and can be stopped for good\n"
    assert "is to be empty and has" in err
    assert not any("s1" in one for one in cluster.world.members())


def test_a_retirement_says_what_prevents_it(cluster: MasterCluster, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "table", "alter", "x", "--replicas", "5")
    _, err = said(capsys, "server", "retire", name("s1"), status=ExitStatus.REFUSED)
    assert f"without {name('s1')} only 4 servers can have one" in err
    _, err = said(capsys, "server", "retire", "nobody", status=ExitStatus.NOT_FOUND)
    assert "no live server 'nobody'" in err
    said(capsys, "server", "retire", "f" * 32, status=ExitStatus.NOT_FOUND)


def test_a_table_gets_another_number_of_replicas(cluster: MasterCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """TC-20. With its progress; a number that is impossible is refused before anything is written."""
    assert "3 -> 1 replica" in said(capsys, "table", "alter", "x", "--replicas", "1", "--dry-run")[0]
    out, err = said(capsys, "table", "alter", "x", "--replicas", "1")
    assert out == "table x: 3 -> 1 replica, all of 4 tablets\n"
    assert "0 of 4 tablets have 1 replica" in err
    assert all(len(one) == 1 for one in cluster.world.members())
    assert "odd number" in said(capsys, "table", "alter", "x", "--replicas", "2", status=ExitStatus.REFUSED)[1]
    assert "can be used" in said(capsys, "table", "alter", "x", "--replicas", "7", status=ExitStatus.REFUSED)[1]
    _, err = said(capsys, "table", "alter", "x", "--replicas", "3", "--kind", "kv/1", status=ExitStatus.USAGE)
    assert "a change of its own" in err


def test_a_wait_lives_through_a_time_without_master(capsys: pytest.CaptureFixture[str]) -> None:
    """No answer is a line; it is an error only at the end of the wait."""
    found = [UnreachableError("no master is active"), waiting.Look("half", False), waiting.Look("all", True)]

    def look() -> waiting.Look:
        one = found.pop(0)
        if isinstance(one, UnreachableError):
            raise one
        return one

    assert waiting.follow(look, 60.0).is_over
    assert [line.split("s  ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "no answer: no master is active", "half", "all",
    ]  # fmt: skip
    found.append(UnreachableError("still none"))
    with pytest.raises(UnreachableError):
        waiting.follow(look, 0.0)
