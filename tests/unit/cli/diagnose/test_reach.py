"""Which server reaches which master, as `rk status` prints it (HB-12)."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cli.common.names import Names
from cli.diagnose.reach import MASTERS_ASKED_MAX, Reach, reaches, show, summary
from regions.liveness.roster import SILENT_MS
from regions.records.model import MasterRecord, ServerRecord
from tests.support.helpers import free_ports

WELL = Reach("s1", "m1", 400)
OLD = Reach("s1", "m2", SILENT_MS + 1)
NEVER = Reach("s2", "m2")
MUTE = Reach("s1", "m3", -1, "connection refused")


def said(*found: Reach) -> str:
    text = io.StringIO()
    show(found, Console(file=text, width=120))
    return text.getvalue()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([WELL], "every server reaches every master, the oldest heartbeat is 0.4 s old"),
        ([WELL, MUTE], "every server reaches every other master"),
        ([WELL, MUTE], "m3 does not list its heartbeats: connection refused"),
        ([WELL, OLD], "5.0 s ago"),
        ([WELL, NEVER], "never"),
    ],
)
def test_what_status_says(found: list[Reach], expected: str) -> None:
    """One line if all heartbeats arrive; otherwise the missing ones, and no others."""
    assert expected in said(*found)
    assert ("s1" in said(*found)) == (OLD in found)


def test_a_server_is_summed_up() -> None:
    """The number of masters that receive its heartbeats, of those that answered."""
    assert summary([WELL, OLD, MUTE], "s1") == "1/2, 0.4 s"
    assert summary([NEVER], "s2") == "0/1"
    assert said() == ""


def test_a_master_that_cannot_be_asked_is_no_silence_of_the_servers() -> None:
    """The reach is unknown then; and the command does not fail."""
    [port] = free_ports(1)
    servers = [ServerRecord("s1", "127.0.0.1", 1, 7)]
    [found] = reaches([MasterRecord("m1", "127.0.0.1", port, 1)], servers, Names(servers, None))
    assert (found.heard_ms, found.is_well) == (-1, True)
    assert "cannot connect to" in found.unknown


def test_forged_masters_do_not_hold_the_command_up() -> None:
    """Anybody who may write into an open store can register any number: the first ones are asked, all at once."""
    [port] = free_ports(1)
    servers = [ServerRecord("s1", "127.0.0.1", 1, 7)]
    masters = [MasterRecord(f"m{n:02}", "127.0.0.1", port, 1) for n in range(MASTERS_ASKED_MAX + 20)]
    found = reaches(masters, servers, Names(servers, None))
    assert sum("not asked" in one.unknown for one in found) == 20
    assert sum("cannot connect" in one.unknown for one in found) == MASTERS_ASKED_MAX
