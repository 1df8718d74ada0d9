"""One line for each event, as text or JSON; levels."""

from __future__ import annotations

import json

import click
import pytest
from twisted.logger import Logger, LogLevel

from cli.main import rk
from coord.logs import FIELD_MAX, FORMATS, LEVELS, StderrLog


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines on stderr."""
    return capsys.readouterr().err.splitlines()


def test_text_is_one_line_with_time_level_and_module(capsys: pytest.CaptureFixture[str]) -> None:
    log = Logger("master.service", observer=StderrLog())
    log.info("region {region}\nmoved", region="r1")
    (line,) = lines(capsys)
    assert line.endswith("Z info  master.service: region r1 moved")


def test_json_has_a_field_for_every_value_of_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    log = Logger("master.service", observer=StderrLog(form="json"))
    log.warn("epoch {epoch}: {region}", epoch=7, region=b"\xff", huge="x" * 10_000, big=1 << 80)
    log.error("{message} {time}", message="m", time="t")
    first, second = map(json.loads, lines(capsys))
    assert (first["level"], first["logger"], first["epoch"]) == ("warn", "master.service", 7)
    assert len(first["huge"]) == FIELD_MAX
    assert first["big"] == str(1 << 80)
    assert second["message"] == "m t", "no value replaces a field of every line"
    assert second["time"].endswith("Z")


def test_failures_have_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for form in FORMATS:
        log = Logger("x", observer=StderrLog(form=form))
        try:
            raise KeyError("lost")
        except KeyError:
            log.failure("broken")
    text = lines(capsys)
    assert "Traceback" in text[1]
    assert "KeyError" in json.loads(text[-1])["traceback"]


def test_level_changes_while_the_daemon_runs(capsys: pytest.CaptureFixture[str]) -> None:
    observer = StderrLog(LogLevel.warn)
    log = Logger("x", observer=observer)
    log.info("left out")
    observer.log_more()
    log.debug("shown")
    observer.log_as_usual()
    log.info("left out again")
    assert [line.rpartition(": ")[2] for line in lines(capsys)] == ["shown"]


def test_options_offer_every_form_and_level() -> None:
    for words in (["coord", "run"], ["master", "run"], ["server", "run"]):
        command: click.Command = rk
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None
            command = found
        types = {param.name: param.type for param in command.params}
        for name, offered in (("log_format", FORMATS), ("log_level", LEVELS)):
            chosen = types[name]
            assert isinstance(chosen, click.Choice)
            assert tuple(chosen.choices) == offered
