"""The drills after which tablets have other members, on one cluster of four servers in two racks that replaces silent
members soon. Each leaves the cluster whole, with load and histories as in `test_drills.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.e2e.test_drills import GAP, check_names, drill, figures

pytestmark = pytest.mark.e2e

SERVERS = 4
TABLETS = 6
#: A member that is silent for this long is replaced; longer than the pauses of a busy machine.
DEAD_S = 5
SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", str(SERVERS), "--racks", "2", "--regions", str(TABLETS))
REPLACED = "members were replaced under new numbers"
VOTERS = "every tablet has its number of voters"
CLEAN = "no rows of former members on the disks"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    data_dir = tmp_path_factory.mktemp("members") / "rk-data"
    options = (*SHAPE, "--plan-engine", "greedy", "--replica-dead-s", str(DEAD_S))
    with local_up(data_dir, "--base-port", str(free_base_port()), *options) as found:
        found.event("up")
        yield found


def test_what_the_loss_of_a_rack_costs_was_forecast(up: LocalUp) -> None:
    """Of three members two are in one of the two racks, so a tablet is served or lost by where they are."""
    for report in drill(up, "tablet-rack-loss", "--rack", "rack-1", *GAP, members=VOTERS):
        assert report["victim"] == "rack-1"
        served, lost = report["forecast"]
        assert served["count"] + lost["count"] == TABLETS
        assert served["is_observed"]
        assert served["agrees"]
        assert lost["agrees"]
        assert CLEAN in check_names(report)


def test_a_dead_servers_tablets_are_whole_again_elsewhere(up: LocalUp) -> None:
    """The server comes back later, as a member of nothing."""
    for report in drill(up, "tablet-server-crash", *GAP, members=VOTERS):
        found = figures(report)
        assert found["all its tablets led elsewhere"] < found["until noticed"] < found["re-replicated"]
        assert found["re-replicated"] > DEAD_S, "a silence that is shorter replaces nothing"
        assert found["copies made"] > 0
        assert found["bytes copied"] > 0
        assert {CLEAN, "no request to a tablet failed"} <= check_names(report)


@pytest.mark.parametrize("lost", [(), ("--log-only",)])
def test_a_lost_disk_is_another_server(up: LocalUp, lost: tuple[str, ...]) -> None:
    """The former identity has no member left; what the drill took away is removed."""
    for report in drill(up, "tablet-disk-loss", *lost, *GAP, members=REPLACED):
        assert figures(report)["back as another server"] > 0
        assert figures(report)["copies made"] > 0
        refused = "a server without its log refuses and names the command"
        assert (refused in check_names(report)) == bool(lost)
    assert not list(up.data_dir.glob("*-lost-*"))
    assert not list(up.data_dir.glob("server-*/former-*"))


def test_a_retired_server_becomes_empty_under_load(up: LocalUp) -> None:
    """By the real command, which the drill takes back: the server may have regions again."""
    for report in drill(up, "retire-server", *GAP, members=VOTERS):
        assert {REPLACED, CLEAN, "no request to a tablet failed"} <= check_names(report)
        assert figures(report)["until it was empty"] > 0
        assert figures(report)["copies made"] > 0
    shown = run_rk("server", "list", "--data-dir", str(up.data_dir))
    assert "drain" not in shown.stdout
    assert "retir" not in shown.stdout


@pytest.mark.parametrize("words", [("tablet-rack-loss", "--rack", "attic"), ("retire-server", "--server", "server-9")])
def test_a_victim_that_does_not_exist_is_refused(up: LocalUp, words: tuple[str, ...]) -> None:
    done = run_rk("drill", *words, "--data-dir", str(up.data_dir))
    assert done.returncode != 0
    assert f"{words[-1]!r}" in done.stderr
    assert "Traceback" not in done.stderr
