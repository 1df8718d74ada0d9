"""Why a server gets no regions: one row per obstacle. RT-11, X10."""

from __future__ import annotations

import msgspec
import pytest

from regions.diagnose.explain_server import obstacles
from regions.messages import ServerLoad
from regions.records.model import NO_ROOM, BarRecord, ServerRecord

NOW_MS = 1_000_000
SERVER = ServerRecord("s1", "h", 1, 7, tablets=True, disk_free=10**9)
LOAD = ServerLoad(SERVER, 3, 100, 0, 0)


def load(**changes: object) -> ServerLoad:
    return msgspec.structs.replace(LOAD, **changes)


def server(**changes: object) -> ServerLoad:
    return load(server=msgspec.structs.replace(SERVER, **changes))


@pytest.mark.parametrize(
    ("found", "text", "command"),
    [
        (load(bar=BarRecord("s1", 7, "hangs")), "(hangs) and gets no regions until `rk server unfence`", "unfence s1"),
        (load(bar=BarRecord("s1", 7, "", 60_000)), "gets no regions until 1970-01-01T00:01:00Z", "unfence s1"),
        (load(draining=True), "it is draining: it gets no regions", "undrain s1"),
        (load(draining=True, open=0), "it is drained: it gets no regions", "undrain s1"),
        (load(fenced="a close does not end"), "it is being fenced: a close does not end", ""),
        (load(shunned_until_ms=NOW_MS + 5_000), "too often in a short time: it gets no regions for 5 s more", ""),
        (server(leaving=True), "it is stopping", ""),
        (server(weight=0.0), "its weight is 0", "--weight 1"),
        (server(disk_free=NO_ROOM), "less free than --reserve", "make room"),
    ],
)  # fmt: skip
def test_obstacle(found: ServerLoad, text: str, command: str) -> None:
    [one] = obstacles(found, NOW_MS)
    assert text in one.text
    assert command in one.command
    assert bool(command) == bool(one.command)


def test_a_server_without_obstacles_and_one_with_several() -> None:
    assert obstacles(LOAD, NOW_MS) == []
    assert obstacles(server(tablets=False, disk_free=NO_ROOM), NOW_MS) == []
    several = obstacles(load(draining=True, fenced="f"), NOW_MS)
    assert [one.text[:14] for one in several] == ["it is draining", "it is being fe"]


def test_a_fenced_server_needs_no_undrain() -> None:
    """A fence empties the server as a drain does, but only `rk server unfence` ends it."""
    found = obstacles(load(draining=True, bar=BarRecord("s1", 7)), NOW_MS)
    assert [one.command for one in found] == ["rk server unfence s1"]
