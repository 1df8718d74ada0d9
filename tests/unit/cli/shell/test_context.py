"""`rk context`, variables of all options, and `rk completion`."""

from __future__ import annotations

import json
import stat
import subprocess
import threading
from pathlib import Path

import click
import pytest

from cli.common.errors import ExitStatus
from cli.common.options import Globals, complete_contexts
from cli.main import rk, run
from cli.shell import complete, completion
from tests.support.helpers import free_ports


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default file in an empty home directory."""
    monkeypatch.delenv("RK_CONFIG_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "rk" / "config.toml"


def test_contexts_are_added_used_listed_and_removed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file's own comments and tables stay; a new file belongs to its owner alone."""
    assert run(["context", "add", "prod", "--store", "127.0.0.1:1", "--root", "/x"]) == ExitStatus.OK
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("# mine\n" + file.read_text() + "\n[region.list]\nlimit = 3  # few\n")
    assert run(["context", "use", "prod"]) == ExitStatus.OK
    assert run(["context", "add", "dev", "--data-dir", "d"]) == ExitStatus.OK
    capsys.readouterr()
    assert run(["context", "list", "--json"]) == ExitStatus.OK
    assert json.loads(capsys.readouterr().out) == [
        {"name": "dev", "in_use": False, "options": {"data-dir": str(Path("d").absolute())}},
        {"name": "prod", "in_use": True, "options": {"store": "127.0.0.1:1", "root": "/x"}},
    ]
    assert run(["context", "remove", "prod"]) == ExitStatus.OK
    assert "commands use no context now" in capsys.readouterr().out
    text = file.read_text()
    assert "# mine" in text
    assert "limit = 3  # few" in text
    assert "prod" not in text
    assert Globals().configuration.commands == {"region": {"list": {"limit": 3}}}


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["add", "prod"], ExitStatus.USAGE, "a context needs a place"),
        (["add", "a b", "--store", "x:1"], ExitStatus.USAGE, "is not a name"),
        (["add", "x" * 65, "--store", "x:1"], ExitStatus.USAGE, "is not a name"),
        (["add", "old", "--store", "x:1"], ExitStatus.REFUSED, "context old exists"),
        (["add", "new", "--store", "x:1", "--store-auth", "u:p"], ExitStatus.USAGE, "keeps no password"),
        (["use", "new"], ExitStatus.NOT_FOUND, "no context 'new'"),
        (["use"], ExitStatus.USAGE, "either NAME or --none"),
        (["remove", "new"], ExitStatus.NOT_FOUND, "no context 'new'"),
    ],
)
def test_a_wrong_context_is_one_sentence_and_changes_nothing(
    words: list[str], status: int, error: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["context", "add", "old", "--store", "x:1"]) == ExitStatus.OK
    before = file.read_text()
    assert run(["context", *words]) == status
    assert error in capsys.readouterr().err
    assert file.read_text() == before


def test_a_name_of_the_greatest_length_is_taken(file: Path) -> None:
    assert run(["context", "add", "x" * 64, "--store", "x:1"]) == ExitStatus.OK


def test_a_context_that_is_gone_does_not_hide_the_list(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise nothing could repair the file."""
    assert run(["context", "add", "dev", "--store", "x:1"]) == ExitStatus.OK
    file.write_text('context = "gone"\n' + file.read_text())
    assert run(["context", "list"]) == ExitStatus.NOT_FOUND
    shown = capsys.readouterr()
    assert "dev" in shown.out
    assert "'gone', does not exist" in shown.err
    assert run(["context", "use", "--none"]) == ExitStatus.OK
    assert run(["context", "list"]) == ExitStatus.OK


def test_a_context_leads_every_command_to_its_cluster(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = free_ports(2)
    run(["context", "add", "here", "--store", f"127.0.0.1:{here}"])
    run(["context", "add", "there", "--store", f"127.0.0.1:{there}"])
    run(["context", "use", "here"])
    capsys.readouterr()
    assert run(["table", "list"]) == ExitStatus.UNREACHABLE
    assert f"127.0.0.1:{here}" in capsys.readouterr().err
    for words in (["--context", "there", "table", "list"], ["table", "list", "--context", "there"]):
        assert run(words) == ExitStatus.UNREACHABLE
        assert f"127.0.0.1:{there}" in capsys.readouterr().err
    assert run(["--context", "there", "master", "run", "--store", "x:1", "--data-dir", "d"]) == ExitStatus.USAGE
    assert "--context is not for daemons" in capsys.readouterr().err


def test_every_option_has_a_variable_and_a_default_in_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong value names its source; the option overrides the variable, the variable the file."""
    file.parent.mkdir()
    file.write_text('[region.list]\nlimit = "file"\n')
    assert run(["region", "list"]) == ExitStatus.USAGE
    errors = capsys.readouterr().err
    assert "'file' is not a valid" in errors
    assert f"The value is from {file}." in errors
    monkeypatch.setenv("RK_REGION_LIST_LIMIT", "variable")
    assert run(["region", "list"]) == ExitStatus.USAGE
    errors = capsys.readouterr().err
    assert "'variable' is not a valid" in errors
    assert "The value is from RK_REGION_LIST_LIMIT." in errors
    assert run(["region", "list", "--limit", "option"]) == ExitStatus.USAGE
    errors = capsys.readouterr().err
    assert "'option' is not a valid" in errors
    assert "The value is from" not in errors


def test_an_option_before_the_daemon_beats_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RK_ROOT", "/variable")
    monkeypatch.setenv("RK_MASTER_RUN_ROOT", "/variable")
    monkeypatch.setenv("RK_STORE", "nonsense")
    monkeypatch.setattr("cli.master._run", lambda *_, **__: None, raising=False)
    run(["--store", "also nonsense", "master", "run", "--data-dir", "d", "--address", "x"])
    assert "'nonsense'" not in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_shown_and_installed(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run(["completion", "show", shell]) == ExitStatus.OK
    script = capsys.readouterr().out
    assert f"_RK_COMPLETE={shell}_complete" in script
    assert run(["completion", "install", shell]) == ExitStatus.OK
    path = completion.place_of(shell)
    assert path.is_relative_to(tmp_path)
    assert path.read_text() == script
    assert str(path) in capsys.readouterr().out


def test_the_script_is_one_that_bash_understands() -> None:
    done = subprocess.run(
        ["bash", "-n"], input=completion.script_of("bash", rk), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shell_that_completes_gets_names_of_contexts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["context", "add", "prod", "--store", "x:1"])
    context = click.Context(click.Command("x"), obj=Globals())
    assert complete_contexts(context, click.Option(["--x"]), "p") == ["prod"]
    assert complete_contexts(context, click.Option(["--x"]), "q") == []
    file.write_text("broken = ")
    context = click.Context(click.Command("x"), obj=Globals())
    assert complete_contexts(context, click.Option(["--x"]), "") == []


def test_a_cluster_that_is_silent_or_fails_yields_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell goes on after the deadline although the cluster has not answered."""
    release = threading.Event()
    monkeypatch.setattr(complete, "DEADLINE_S", 0.01)
    monkeypatch.setattr("cli.common.connect.open_cluster", lambda _: release.wait(60))
    context = click.Context(click.Command("x"), obj=Globals())
    assert complete.tables(context, click.Option(["--x"]), "") == []
    release.set()
    monkeypatch.setattr(complete, "DEADLINE_S", 60.0)
    monkeypatch.setattr("cli.common.connect.open_cluster", lambda _: 1 / 0)
    assert complete.servers(context, click.Option(["--x"]), "") == []


def test_completions_of_a_large_cluster_are_bounded() -> None:
    many = [f"t{number}" for number in range(complete.OFFERED_MAX + 1)]
    assert len(complete._fitting(many, "t")) == complete.OFFERED_MAX
    assert len(complete._fitting(many[:-1], "t")) == complete.OFFERED_MAX


def test_arguments_that_name_something_are_completed() -> None:
    """An option or argument TABLE, REGION, TABLET, SERVER or PLAN offers names."""
    from tests.support.docs.reference import all_commands

    wanted = {"TABLE", "REGION", "TABLET", "[TABLET]", "SERVER", "[PLAN]"}
    for path, command in all_commands():
        if path[0] == "debug":  # files of a stopped server
            continue
        for param in command.params:
            if param.metavar in wanted or (isinstance(param, click.Argument) and param.name == "table"):
                assert param._custom_shell_complete is not None, (path, param.name)
