"""The actions by which a drill cuts a server's links: permission, and from when on
(`regionserver.tablets.links.cuts`)."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from coord.admin_token import ADMIN_FILE
from coord.errors import ConfigError
from coord.peers.partition import CUT_PATH, HEAL_PATH
from regionserver.tablets.links.cuts import LinkCuts
from tests.unit.coord.peers.test_partition import Asked, Links

ADDRESS = ("127.0.0.1", 4711)


def token(folder: Path) -> bytes:
    content: dict[str, Any] = json.loads((folder / ADMIN_FILE).read_bytes())
    assert content["admin"] == "127.0.0.1:4711"
    return str(content["token"]).encode()


def test_links_are_cut_and_healed_with_the_token_of_the_data_directory(tmp_path: Path) -> None:
    clock, links = Clock(), Links()
    actions = LinkCuts(clock, tmp_path, lambda: links).actions(ADDRESS)
    assert stat.S_IMODE((tmp_path / ADMIN_FILE).stat().st_mode) == 0o600
    refused = Asked(token=b"of somebody else", for_s="30")
    actions[CUT_PATH](refused)
    assert (refused.status, links.is_cut) == (401, False)
    asked = Asked(token=token(tmp_path), for_s="30", direction="in")
    actions[CUT_PATH](asked)
    assert (asked.status, links.is_incoming, links.is_outgoing) == (200, True, False)
    healed = Asked(token=token(tmp_path))
    actions[HEAL_PATH](healed)
    assert (healed.status, links.is_cut) == (200, False)


def test_token_stays_valid_over_restarts(tmp_path: Path) -> None:
    LinkCuts(Clock(), tmp_path, lambda: None).actions(ADDRESS)
    first = token(tmp_path)
    LinkCuts(Clock(), tmp_path, lambda: None).actions(ADDRESS)
    assert token(tmp_path) == first
    (tmp_path / ADMIN_FILE).write_bytes(b"[]")
    LinkCuts(Clock(), tmp_path, lambda: None).actions(ADDRESS)
    assert len(token(tmp_path)) == len(first)


def test_server_without_links_yet_says_so(tmp_path: Path) -> None:
    found: list[Links] = []
    actions = LinkCuts(Clock(), tmp_path, lambda: found[0] if found else None).actions(ADDRESS)
    for path in (CUT_PATH, HEAL_PATH):
        asked = Asked(token=token(tmp_path), for_s="30")
        actions[path](asked)
        assert asked.status == 503
    found.append(Links())
    asked = Asked(token=token(tmp_path), for_s="30")
    actions[CUT_PATH](asked)
    assert (asked.status, found[0].is_cut) == (200, True)


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=ADMIN_FILE):
        LinkCuts(Clock(), tmp_path / "missing", lambda: None).actions(ADDRESS)
