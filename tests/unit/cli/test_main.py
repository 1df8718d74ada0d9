"""The command line: help, shared options, and errors as one clear line."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.common.errors import ExitStatus
from cli.common.options import Globals, parse_hosts
from cli.main import ENTRIES, rk, run
from tests.support.helpers import free_ports
from tests.support.helpers import rk as rk_words


def test_help_lists_every_command_below_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    """The help also explains the exit statuses."""
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for entry in ENTRIES:
        assert f"{entry.heading}:" in text
        assert entry.help in text
    assert "Exit status" in text


def _cut_off(group: click.Group, path: str, parent: click.Context | None = None) -> Iterator[str]:
    """Yield the commands below a group whose descriptions end in the middle at 80 columns."""
    context = click.Context(group, info_name=path, parent=parent)
    shown = click.HelpFormatter(width=80)
    group.format_commands(context, shown)
    yield from (f"{path}: {line.strip()}" for line in shown.getvalue().splitlines() if line.endswith("..."))
    for name in group.list_commands(context):
        below = group.get_command(context, name)
        if isinstance(below, click.Group):
            yield from _cut_off(below, f"{path} {name}", context)


def test_no_description_of_a_command_is_cut_off_in_a_narrow_terminal() -> None:
    """Tried: with click's own group for `rk table` six of its commands are."""
    assert list(_cut_off(rk, "rk")) == []


def test_help_imports_no_command() -> None:
    """Otherwise the help would be slow: it loads neither tables nor kazoo nor Twisted."""
    slow = ("rich", "kazoo", "twisted")
    code = f"import sys; from cli.main import run; run(['--help']); print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_entry_names_a_module_that_exists() -> None:
    """The table agrees with the files."""
    for entry in ENTRIES:
        assert importlib.util.find_spec(entry.target.partition(":")[0]) is not None, entry.target


def test_store_address_without_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the wrong part and the right form."""
    assert run(["status", "--store", "localhost"]) == ExitStatus.USAGE
    assert "'localhost' is not host:port" in capsys.readouterr().err


@pytest.mark.parametrize("place", [0, 1, 2])
def test_shared_options_are_taken_before_and_after_the_subcommand(
    place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing answers at a free port, in both positions of the option."""
    words = ["table", "list"]
    words[place:place] = ["--store", f"127.0.0.1:{free_ports(1)[0]}"]
    assert run(words) == ExitStatus.UNREACHABLE
    errors = capsys.readouterr().err
    assert "no store answers at 127.0.0.1:" in errors
    assert "Traceback" not in errors


def test_option_beats_environment_even_before_the_subcommand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RK_STORE applies only without the option."""
    here, there = free_ports(2)
    monkeypatch.setenv("RK_STORE", f"127.0.0.1:{there}")
    assert run(["--store", f"127.0.0.1:{here}", "table", "list"]) == ExitStatus.UNREACHABLE
    assert f"127.0.0.1:{here}" in capsys.readouterr().err
    assert run(["table", "list"]) == ExitStatus.UNREACHABLE
    assert f"127.0.0.1:{there}" in capsys.readouterr().err


def test_no_cluster_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines: the error with its place, then the remedy."""
    assert run(["status", "--data-dir", str(tmp_path)]) == ExitStatus.UNREACHABLE
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"rk: no local cluster in {tmp_path}"
    assert "rk up" in lines[1]


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the help."""
    assert run(["stats"]) == ExitStatus.USAGE
    assert "stats" in capsys.readouterr().err


def test_after_a_word_that_no_command_is_like_all_commands_of_the_group_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["acl", "orders"]) == ExitStatus.USAGE
    assert "Commands of rk acl: " in capsys.readouterr().err
    assert run(["xyz"]) == ExitStatus.USAGE
    assert "Commands of rk:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["statsu"], "Did you mean `rk status`"),
        (["coord", "stauts"], "`rk coord status`"),
        (["table", "lsit"], "Did you mean 'list'?"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(
    words: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == ExitStatus.USAGE
    error = capsys.readouterr().err
    assert suggestion in error
    assert error.count("Did you mean") == 1


def test_the_environment_names_the_local_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RK_DATA_DIR", str(tmp_path / "a"))
    assert run(["status"]) == ExitStatus.UNREACHABLE
    assert f"no local cluster in {tmp_path / 'a'}" in capsys.readouterr().err
    assert run(["status", "--data-dir", str(tmp_path / "b")]) == ExitStatus.UNREACHABLE
    assert f"no local cluster in {tmp_path / 'b'}" in capsys.readouterr().err
    monkeypatch.setenv("RK_ROOT", "/elsewhere/")
    assert Globals().root_path == "/elsewhere"


def test_a_host_without_an_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["table", "list", "--store", "nosuchhost.invalid:2181"]) == ExitStatus.UNREACHABLE
    assert "cannot resolve the host 'nosuchhost.invalid'" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_at_the_reader_is_one_line() -> None:
    """It is not an internal error of rk."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(rk_words("--help"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == ExitStatus.REFUSED
    assert done.stderr == "rk: cannot write the output: No space left on device\n"


def test_a_file_that_cannot_be_used_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine forbids it; it is no internal error of rk."""
    name = 300 * "x"
    assert run(["table", "list", "--store", "127.0.0.1:1", "--store-tls-ca", name]) == ExitStatus.REFUSED
    assert f"rk: cannot use {name}: File name too long" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EBADF, "Bad file descriptor", 7), "cannot use file descriptor 7: Bad file"),
        (OSError(errno.EMFILE, "Too many open files", "/x"), "Raise the limit: ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "would block", 12), "cannot write the output: would block"),
        (BlockingIOError(errno.EAGAIN, "try again"), "Raise the limit: ulimit -u"),
        (BlockingIOError(errno.EAGAIN, "try again", "/x"), "cannot use /x: try again"),
    ],
    ids=["descriptor", "limit", "busy output", "process", "busy file"],
)
def test_what_the_system_refuses_is_named(
    error: OSError, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(_self: Globals) -> Path:
        raise error

    monkeypatch.setattr(Globals, "data_path", property(refused))
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup2", lambda *_: None)
        assert run(["status"]) == ExitStatus.REFUSED
    shown = capfd.readouterr().err
    assert words in shown
    assert "internal error" not in shown


def test_unexpected_fault_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """RK_DEBUG=1 shows a traceback; without it, or with RK_DEBUG=0, there is none."""
    monkeypatch.setattr(Globals, "data_path", property(lambda _self: 1 // 0))
    assert run(["status"]) == 70
    errors = capsys.readouterr().err
    assert "ZeroDivisionError" in errors
    assert "Traceback" not in errors
    monkeypatch.setenv("RK_DEBUG", "0")
    assert run(["status"]) == 70
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("RK_DEBUG", "1")
    assert run(["status"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_status_of_a_silent_store_still_shows_its_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON goes to standard output, the error to standard error."""
    (port,) = free_ports(1)
    assert run(["--json", "status", "--store", f"127.0.0.1:{port}"]) == ExitStatus.UNREACHABLE
    captured = capsys.readouterr()
    assert json.loads(captured.out)["store"] == [
        {
            "name": f"127.0.0.1:{port}",
            "address": f"127.0.0.1:{port}",
            "role": "down",
            "zxid": "",
            "connections": "",
            "znodes": "",
            "version": "",
        }
    ]


def test_every_command_but_daemons_takes_json_behind_it() -> None:
    """Options are accepted before and after the subcommand."""

    def lacking(command: click.Command, name: str) -> Iterator[str]:
        context = click.Context(command)
        if isinstance(command, click.Group):
            for one in command.list_commands(context):
                below = command.get_command(context, one)
                assert below is not None, one
                yield from lacking(below, f"{name} {one}".strip())
        elif not any("--json" in parameter.opts for parameter in command.params):
            yield name

    assert set(lacking(rk, "")) == {"coord run", "master run", "server run"}


def test_a_backup_into_no_directory_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error does not name the draft file, which users do not know."""
    assert run(["coord", "backup", str(tmp_path / "none" / "file")]) == ExitStatus.USAGE
    assert f"directory {tmp_path / 'none'} does not exist" in capsys.readouterr().err


def test_hosts_are_normalised() -> None:
    """The zk:// of an outside store is only a prefix."""
    assert parse_hosts("zk://a:1, b:2/") == "a:1,b:2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("coord", "run", "--max-outstanding", "0"), "'--max-outstanding': 0 is not in the range"),
        (("coord", "run", "--keep-bytes", "-1"), "'--keep-bytes': -1 is not in the range"),
        (
            ("coord", "run", "--stall-timeout-ms", "99999999999"),
            "'--stall-timeout-ms': 99999999999 is not in the range",
        ),
        (("master", "run", "--attempts-max", "0"), "'--attempts-max': 0 is not in the range"),
        (("master", "run", "--spark-min", "-5"), "'--spark-min': -5 is not in the range"),
        (("master", "run", "--min-servers", "0"), "'--min-servers': 0 is not in the range"),
        (("master", "run", "--session-timeout-ms", "99999999999"), "'--session-timeout-ms': 99999999999 is not in the"),
        (("server", "run", "--threads", "0"), "'--threads': 0 is not in the range"),
        (("up", "--plan-deadline-s", "9e9"), "'--plan-deadline-s': 9000000000.0 is not in the range"),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_its_option(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some reached the daemon, others an error with the name of a field instead of the option."""
    assert run(words) == ExitStatus.USAGE
    assert said in capsys.readouterr().err
