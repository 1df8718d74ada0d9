"""Reasons why a region server gets no regions, or loses its regions, and commands that help. Pure.

Input: the active master's answer about the server. A server without an obstacle is a candidate for every region of its
kind and group; whether it gets one is the balancer's choice.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from regions.assign.placement import bar_end_text
from regions.messages.cluster import ServerLoad
from regions.records.model import NO_ROOM


class Obstacle(msgspec.Struct, frozen=True):
    """One reason why a server gets no regions, and the command that would end it; "" if only time or a repair helps."""

    text: str
    command: str = ""


def obstacles(load: ServerLoad, now_ms: int) -> list[Obstacle]:
    """Return the obstacles of one server, those by operators first."""
    return list(_of(load, now_ms))


def _of(load: ServerLoad, now_ms: int) -> Iterator[Obstacle]:
    server = load.server
    if load.bar is not None:
        reason = f" ({load.bar.reason})" if load.bar.reason else ""
        text = f"it was fenced{reason} and gets no regions {bar_end_text(load.bar)}"
        yield Obstacle(text, f"rk server unfence {server.uuid}")
    if load.draining and load.bar is None:  # a fenced server is emptied like a drained one
        yield Obstacle(
            f"it is {load.drained}: it gets no regions until it is undrained", f"rk server undrain {server.uuid}"
        )
    if load.fenced:
        yield Obstacle(f"it is being fenced: {load.fenced}; its regions open elsewhere when its lease is over")
    if server.leaving:
        yield Obstacle("it is stopping and hands its regions over first")
    if load.shunned_until_ms:
        left_s = max(0, load.shunned_until_ms - now_ms) / 1000
        yield Obstacle(f"it has registered too often in a short time: it gets no regions for {left_s:.0f} s more")
    if server.weight <= 0:
        yield Obstacle("its weight is 0", "restart it with --weight 1")
    if server.tablets and server.disk_free == NO_ROOM:
        yield Obstacle("its disk has less free than --reserve: it gets no members of tablets", "make room on its disk")
