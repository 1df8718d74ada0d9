"""Exit statuses: one table, and commands that end with what the table says."""

from __future__ import annotations

import fcntl
import inspect
from pathlib import Path

import click
import pytest

from cli.common.errors import MEANINGS, MEANINGS_OF_COMMANDS, ExitStatus
from cli.main import rk, run
from coord.offline.directory import LOCK, WAL_FOLDER
from regions.diagnose.health import EXIT_STATUS
from tests.support.docs.reference import all_commands, command_at
from tests.support.helpers import free_ports


def test_every_status_has_a_meaning_and_help_shows_it() -> None:
    """A new status is not complete without its line."""
    assert set(MEANINGS) == set(ExitStatus)
    shown = rk.get_help(click.Context(rk))
    for status, (short, _) in MEANINGS.items():
        assert f"{status:<4} {short}" in shown


def test_commands_of_the_table_exist() -> None:
    """Meanings of single commands name commands or groups, with statuses that a verdict may have."""
    for command, meanings in MEANINGS_OF_COMMANDS.items():
        command_at(command.split())
        assert ExitStatus.OK not in meanings
    assert set(EXIT_STATUS.values()) == {0, *MEANINGS_OF_COMMANDS["health"]}


def test_commands_with_a_verdict_are_in_the_table() -> None:
    """A command that returns a status, and does not only raise errors, has a row with the status's meaning."""
    for path, command in all_commands():
        assert command.callback is not None
        if inspect.unwrap(command.callback).__annotations__.get("return") == "None":
            continue
        names = {" ".join(path[: n + 1]) for n in range(len(path))}
        assert names & set(MEANINGS_OF_COMMANDS), path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files that commands meet."""
    monkeypatch.chdir(tmp_path)
    for name in ("there", "full/file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.toml").write_text("no-such-key = 1\n")
    (tmp_path / "bad.csv").write_text('a,b\n"x\n')
    return tmp_path


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("--help", ExitStatus.OK),
        ("region list --help", ExitStatus.OK),
        # What is on this machine forbids the request.
        ("coord backup there", ExitStatus.REFUSED),
        ("up --data-dir full --no-table", ExitStatus.REFUSED),
        ("backup create full --store STORE", ExitStatus.UNREACHABLE),
        ("backup verify empty", ExitStatus.NOT_FOUND),
        # The line is wrong on every cluster.
        ("statsu", ExitStatus.USAGE),
        ("region list --nothing", ExitStatus.USAGE),
        ("table create t --from none.csv --regions 2 --store STORE", ExitStatus.USAGE),
        ("table create t --from bad.csv --regions 2 --store STORE", ExitStatus.USAGE),
        ("table create t --splits none.txt --store STORE", ExitStatus.USAGE),
        ("--config-file none.toml status", ExitStatus.USAGE),
        ("--config-file bad.toml status", ExitStatus.USAGE),
        ("status --store nowhere", ExitStatus.USAGE),
        ("status --store STORE --store-tls-ca none.pem", ExitStatus.USAGE),
        ("table list --root relative --store STORE", ExitStatus.USAGE),
        ("simulate --replay none.json", ExitStatus.USAGE),
        ("simulate --replay there", ExitStatus.USAGE),
        ("coord dump-log none", ExitStatus.USAGE),
        ("coord backup none/file", ExitStatus.USAGE),
        ("coord verify empty", ExitStatus.USAGE),
        ("debug tablet verify --data-dir empty", ExitStatus.USAGE),
        ("watch --live --json", ExitStatus.USAGE),
        ("up --servers 0 --data-dir new", ExitStatus.USAGE),
        # Nobody is there to ask.
        ("status --data-dir empty", ExitStatus.UNREACHABLE),
        ("drill server-crash --data-dir empty", ExitStatus.UNREACHABLE),
        ("table list --store STORE", ExitStatus.UNREACHABLE),
        ("table list --store no.such.host.invalid:1", ExitStatus.UNREACHABLE),
        # No such thing.
        ("context use none", ExitStatus.NOT_FOUND),
    ],
)
def test_error_paths(line: str, status: ExitStatus, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each ends with its status and without a traceback."""
    assert here.is_dir()
    store = f"127.0.0.1:{free_ports(1)[0]}"
    assert run([word.replace("STORE", store) for word in line.split()]) is status
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert "internal error" not in errors
    assert bool(errors) is (status is not ExitStatus.OK)


def test_directory_in_use_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node's directory while the node runs is in a state that forbids reading; the line is right."""
    folder = here / "node"
    (folder / WAL_FOLDER).mkdir(parents=True)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in ("verify", "dump-log", "dump-snapshot"):
            assert run(["coord", command, str(folder)]) is ExitStatus.REFUSED
    assert "Stop the node first" in capsys.readouterr().err
