"""Short names of servers, and finding the server that a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.common.errors import CliError, NotFoundError
from cli.common.local import Daemon, LocalCluster
from cli.common.names import Names
from regions.records.model import Incarnation, ServerRecord

ONE = ServerRecord("aa11", "127.0.0.1", 21851, 1)
TWO = ServerRecord("aa22", "127.0.0.1", 21852, 1)
LOCAL = LocalCluster("127.0.0.1:21801", "/regionkeeper", False, 21800, [], [], [
    Daemon("server-1", "server", "127.0.0.1:21851", "", "", ""),
    Daemon("server-2", "server", "127.0.0.1:21852", "", "", ""),
])  # fmt: skip


def test_local_names_are_those_of_rk_up() -> None:
    """By uuid or by incarnation; unknown servers are shown by the beginning of their uuid."""
    names = Names([ONE, TWO], LOCAL)
    assert names.of_uuid("aa11") == "server-1"
    assert names.of(Incarnation("aa22", 9)) == "server-2"
    assert names.of(None) == ""
    assert names.of_uuid("0123456789abcdef") == "01234567"


def test_elsewhere_a_server_is_its_address() -> None:
    """There are no other names."""
    assert Names([ONE], None).of_uuid("aa11") == "127.0.0.1:21851"


@pytest.mark.parametrize("text", ["server-1", "127.0.0.1:21851", "aa11"])
def test_server_is_found_by_any_of_its_names(text: str) -> None:
    """Name, address, uuid."""
    assert Names([ONE, TWO], LOCAL).find(text) == ONE


def test_ambiguous_and_unknown_names_say_so() -> None:
    """The error also lists the live servers."""
    names = Names([ONE, TWO], LOCAL)
    with pytest.raises(CliError, match="matches 2 servers"):
        names.find("aa")
    with pytest.raises(NotFoundError) as caught:
        names.find("server-9")
    assert caught.value.hint == "Live servers: server-1, server-2."


def test_a_new_server_is_learned() -> None:
    """A watch may run for longer than the servers that were there at its start."""
    names = Names([ONE], LOCAL)
    names.learn(TWO)
    assert names.of_uuid("aa22") == "server-2"


def test_a_name_that_another_server_has_by_now_is_marked() -> None:
    """A server that started with an empty directory has a new uuid; its former self is not registered."""
    names = Names([ONE], LOCAL)
    names.remember("bb33bb33-4711", "127.0.0.1:21851")
    names.remember("bb44", "127.0.0.1:21852")
    assert names.of_uuid("bb33bb33-4711") == "server-1 (former, bb33bb33)"
    assert names.of_uuid("bb44") == "server-2"
    assert names.uuids("server-1") == ["aa11"]


def test_uuids_of_unknown_servers_are_short_in_sentences() -> None:
    """As in tables; known servers are shown by name."""
    known, gone = "11111111-2222-3333-4444-555555555555", "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
    names = Names([ServerRecord(known, "h", 1, 1)], None)
    assert names.in_sentence(f"1 on {known}@7, 2 on {gone}") == "1 on h:1, 2 on aaaaaaaa"


def test_a_dead_server_of_a_local_cluster_keeps_its_name(tmp_path: Path) -> None:
    """The server's own directory has its identity; a directory without a readable file gives no name."""
    uuid = "11111111-2222-3333-4444-555555555555"
    dead, new = (
        Daemon(name, "server", "127.0.0.1:1", "", str(tmp_path / name), "") for name in ("server-1", "server-2")
    )
    (tmp_path / "server-1").mkdir()
    (tmp_path / "server-1" / "instance.json").write_text(f'{{"format":2,"uuid":"{uuid}","start_code":7}}')
    (tmp_path / "server-2").mkdir()
    (tmp_path / "server-2" / "instance.json").write_text("{")
    local = LocalCluster("127.0.0.1:21801", "/regionkeeper", False, 21800, [], [], [dead, new])
    names = Names([], local)
    assert names.of_uuid(uuid) == "server-1"
    assert names.in_sentence(f"2 of 3 voters are healthy; 1 on {uuid} is UNKNOWN").endswith("1 on server-1 is UNKNOWN")
    with pytest.raises(NotFoundError):
        names.find("server-1")
