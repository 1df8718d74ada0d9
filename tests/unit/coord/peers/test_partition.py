"""The endpoint by which a drill cuts a node off: permission, time limit, and effect on the links (N1)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from coord.peers.partition import CUT_S_MAX, PartitionEndpoint
from coord.peers.stream import GIVE_UP_MS

TOKEN = b"ab" * 32


class Links:
    """Records the calls of the endpoint to the links."""

    def __init__(self) -> None:
        self.is_incoming = False
        self.is_outgoing = False
        self.broken: list[str] = []

    @property
    def is_cut(self) -> bool:
        """As of `PeerLinks`."""
        return self.is_incoming or self.is_outgoing

    def lose(self, *, is_incoming: bool, is_outgoing: bool) -> None:
        """As of `PeerLinks`."""
        self.is_incoming, self.is_outgoing = is_incoming, is_outgoing

    def break_all(self, reason: str) -> None:
        """As of `PeerLinks`."""
        self.broken.append(reason)


class Asked:
    """A request with the methods that the endpoint uses."""

    def __init__(self, token: bytes = TOKEN, method: bytes = b"POST", **args: str) -> None:
        self.method = method
        self.args = {name.encode(): [value.encode()] for name, value in args.items()}
        self.status = 0
        self._token = token

    def getHeader(self, name: bytes) -> bytes | None:
        """Return the token."""
        return b"Bearer " + self._token if name == b"authorization" else None

    def setResponseCode(self, status: int) -> None:
        """Keep the status code."""
        self.status = status

    def setHeader(self, *_: Any) -> None:
        """Ignore the header."""

    def write(self, _: bytes) -> None:
        """Ignore the text."""

    def finish(self) -> None:
        """Do nothing."""


def door(clock: Clock, links: Links) -> PartitionEndpoint:
    """Return an endpoint for these links."""
    return PartitionEndpoint(clock, links, TOKEN)  # type: ignore[arg-type]


@pytest.mark.parametrize(("direction", "ways"), [("both", (True, True)), ("in", (True, False)), ("out", (False, True))])
def test_cut_loses_frames_first_and_connections_later(direction: str, ways: tuple[bool, bool]) -> None:
    """As in a network: the ends are not informed, and the kernel gives up after a while."""
    clock, links = Clock(), Links()
    asked = Asked(for_s="30", direction=direction)
    door(clock, links).answer_cut(asked)
    assert asked.status == 200
    assert (links.is_incoming, links.is_outgoing) == ways
    assert links.broken == []
    clock.advance(GIVE_UP_MS / 1000)
    assert links.broken == ["no acknowledgement"]
    assert links.is_cut


def test_healing_begins_with_new_connections_and_comes_by_itself() -> None:
    """Frames on the old connections were lost. The cut ends by itself, even if the drill has died."""
    clock, links = Clock(), Links()
    found = door(clock, links)
    found.answer_cut(Asked(for_s="30"))
    found.answer_heal(Asked())
    assert not links.is_cut
    assert links.broken == ["healed"]
    found.answer_heal(Asked())
    clock.advance(60)
    assert links.broken == ["healed"]
    found.answer_cut(Asked(for_s="2"))
    clock.advance(2)
    assert not links.is_cut


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (Asked(token=b"", for_s="1"), 401),
        (Asked(token=b"cd" * 32, for_s="1"), 401),
        (Asked(method=b"GET", for_s="1"), 405),
        (Asked(), 400),
        (Asked(for_s="nan"), 400),
        (Asked(for_s="0"), 400),
        (Asked(for_s=f"{CUT_S_MAX + 1}"), 400),
        (Asked(for_s="1", direction="up"), 400),
        (Asked(for_s=f"{CUT_S_MAX}"), 200),
    ],
)
def test_nobody_cuts_without_the_token_or_without_an_end(asked: Asked, status: int) -> None:
    """Rejected requests change nothing."""
    links = Links()
    door(Clock(), links).answer_cut(asked)
    assert asked.status == status
    assert links.is_cut == (status == 200)
