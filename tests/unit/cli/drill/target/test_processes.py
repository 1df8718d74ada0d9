"""Processes of a cluster that `rk up` does not run: the operator's commands, and their arguments."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from cli.common.errors import CliError, UsageFaultError
from cli.drill.target import processes as module
from cli.drill.target.processes import NO_HOOKS, Hooks, OutsideProcesses, filled, outside_cluster
from regions.records.model import MasterRecord, ServerRecord
from regions.records.znodes import Layout


class FakeCluster:
    """A cluster with one master and two region servers."""

    hosts = "store:2181"
    layout = Layout("/rk")

    def __init__(self) -> None:
        self.live = [ServerRecord("s1", "10.0.0.1", 7000, 5), ServerRecord("s2", "10.0.0.2", 7000, 6)]

    def masters(self) -> list[MasterRecord]:
        return [MasterRecord("m1", "10.0.0.9", 6000, 1)]

    def servers(self) -> list[ServerRecord]:
        return self.live


def outside(hooks: Hooks) -> tuple[FakeCluster, OutsideProcesses]:
    found = FakeCluster()
    cluster: Any = found
    return found, OutsideProcesses(cluster, outside_cluster(cluster), hooks)


NAME = "10.0.0.1:7000"


def test_processes_are_named_by_address_and_known_by_start_code() -> None:
    cluster, processes = outside(NO_HOOKS)
    assert {name: one.pid for name, one in processes.daemons().items()} == {
        "10.0.0.9:6000": 1,
        "10.0.0.1:7000": 5,
        "10.0.0.2:7000": 6,
    }
    del cluster.live[0]
    assert processes.daemons()[NAME].pid == 0, "it is not registered any more"


def test_a_command_is_split_before_its_placeholders_are_replaced() -> None:
    """A name with a space or a semicolon stays one word, and is never read by a shell."""
    daemon = outside_cluster(FakeCluster()).servers[0]  # type: ignore[arg-type]
    assert filled("ssh {host} 'stop {port} {role}' {other}", daemon) == [
        "ssh",
        "10.0.0.1",
        "stop 7000 server",
        "{other}",
    ]
    daemon.name = "a b; c"
    assert filled("kill {name}", daemon) == ["kill", "a b; c"]
    for wrong in ("", "kill 'x"):
        with pytest.raises(UsageFaultError):
            filled(wrong, daemon)


def test_commands_get_the_process_in_words_and_environment(tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = tmp_path / "hook"
    script.write_text(f'#!/bin/sh\necho "$1 $RK_PROCESS_NAME $RK_PROCESS_PORT $RK_PROCESS_ROLE" >> {told}\n')
    script.chmod(0o755)
    _, processes = outside(Hooks(f"{script} kill-{{host}}", f"{script} start"))
    processes.send(NAME, signal.SIGKILL)
    processes.start(NAME)
    assert told.read_text().splitlines() == [
        "kill-10.0.0.1 10.0.0.1:7000 7000 server",
        "start 10.0.0.1:7000 7000 server",
    ]


def test_a_shell_reads_the_command_only_if_asked(tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = f"echo $RK_PROCESS_HOST > {told}"
    outside(Hooks(command, command, in_shell=True))[1].start(NAME)
    assert told.read_text() == "10.0.0.1\n"
    told.unlink()
    outside(Hooks(command, command))[1].start(NAME)
    assert not told.exists()


def test_a_command_that_fails_is_missing_or_hangs_ends_the_drill(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = outside(Hooks("sh -c 'echo no such unit >&2; exit 3'", "/nowhere/x"))[1]
    with pytest.raises(CliError, match=r"status 3 for .*: no such unit"):
        failing.send(NAME, signal.SIGKILL)
    with pytest.raises(CliError, match="cannot be run"):
        failing.start(NAME)
    monkeypatch.setattr(module, "HOOK_TIMEOUT_S", 0.05)
    with pytest.raises(CliError, match="did not end within"):
        outside(Hooks("sleep 60", "true"))[1].send(NAME, signal.SIGKILL)


def test_only_kills_are_possible_and_only_with_commands() -> None:
    with pytest.raises(CliError, match="SIGSTOP"):
        outside(Hooks("true", "true"))[1].send(NAME, signal.SIGSTOP)
    _, without = outside(NO_HOOKS)
    with pytest.raises(CliError, match="no command kills"):
        without.send(NAME, signal.SIGKILL)
    with pytest.raises(CliError, match="no command starts"):
        without.start(NAME)
    with without.watch(lambda: None) as watch:
        assert not watch.is_gone
