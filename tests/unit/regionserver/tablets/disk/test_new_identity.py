"""A directory on which a server refuses to start gets a new identity (TC-18), and a start makes it.

Without `_RECORD` in `identity.PARTS` the old uuid returns, and three of these tests fail.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.main import rk
from coord.errors import ConfigError
from regionserver.session.instance import Instance
from regionserver.tablets.offline import identity
from tests.unit.regionserver.tablets.disk.test_bad_directories import Box, contents


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "server")


def run(box: Box, *words: str, **more: Any) -> Result:
    return CliRunner().invoke(rk, ["server", "new-identity", "--data-dir", str(box.path), *words], **more)


def refused(box: Box) -> None:
    with pytest.raises(ConfigError, match="rk server new-identity --data-dir"):
        box.start()


@pytest.mark.parametrize("gone", ["wals", "tablet-meta", "instance.json"])
def test_the_command_makes_a_refused_directory_startable_and_removes_nothing(box: Box, gone: str) -> None:
    path = box.path / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    box.slots.slots.clear()
    refused(box)
    before = box.bytes()
    shown = run(box, "--dry-run", "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["uuid"] == ("" if gone == "instance.json" else box.uuid)
    assert box.bytes() == before
    assert run(box, input="n\n").exit_code == 1
    assert box.bytes() == before
    done = run(box, "--yes")
    assert done.exit_code == 0, done.output
    after = box.bytes()
    assert sorted(before.values()) == sorted(after.values())
    assert box.start() == {}
    instance = Instance.open(box.path)
    assert instance.uuid != box.uuid
    instance.close()


def test_a_command_that_was_cut_short_leaves_a_refusal_and_goes_on(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of moved parts, a start is refused until all are moved."""
    parts = identity.IdentityDirectory(box.path).former().parts
    for count in range(1, len(parts)):
        again = Box(box.path.parent / str(count))
        directory = identity.IdentityDirectory(again.path)
        former = directory.former()
        directory.set_aside(former._replace(parts=former.parts[:count]))
        directory.close()
        again.slots.slots.clear()
        refused(again)
        assert run(again, "--yes").exit_code == 0
        assert again.start() == {}
        assert again.uuid not in (again.path / "instance.json").read_text()


def test_a_running_server_keeps_its_identity(box: Box) -> None:
    instance = Instance.open(box.path)
    before = contents(box.path)
    found = run(box, "--yes")
    assert found.exit_code != 0
    assert "in use" in str(getattr(found.exception, "message", found.output))
    assert contents(box.path) == before
    instance.close()


def test_a_directory_without_anything_gets_an_identity_by_itself(box: Box) -> None:
    """Everything is gone: the old uuid never comes back."""
    for path in box.path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    box.slots.slots.clear()
    assert box.start() == {}
    assert box.uuid not in (box.path / "instance.json").read_text()
    other = Box(box.path.parent / "empty")
    shutil.rmtree(other.path)
    assert run(other, "--yes").exit_code != 0
