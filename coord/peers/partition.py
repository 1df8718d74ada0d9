"""Partition injection: cut a process off from its peers, for drills, on one machine and without root.

`POST /cut?for_s=30&direction=both` on the admin port cuts a store node off from the other nodes, or a region server
from the other members of its tablets. The process must have been started with `--drill-links` (a local cluster is), and
the request needs the token of `admin.json`. `direction` is relative to this process: `out` drops frames to its peers,
`in` frames from its peers. The cut ends with `POST /heal`, or after `for_s` seconds if the drill has died.

A cut behaves like a network partition. Frames are dropped without an error on either side, and attempts to connect get
no reply. After `stream.GIVE_UP_MS` connections are closed, as the kernel would close them: acknowledgments are lost in
either case. Client connections are not affected.
"""

from __future__ import annotations

import hmac
from typing import Any, Final, Protocol

from twisted.logger import Logger

from coord.peers.stream import GIVE_UP_MS

log = Logger()

CUT_PATH: Final = b"/cut"
HEAL_PATH: Final = b"/heal"
#: Longest cut in seconds: a drill that died must not leave a partition behind.
CUT_S_MAX: Final = 300.0
DIRECTIONS: Final = ("both", "in", "out")
_BEARER: Final = b"Bearer "


class LosingLinks(Protocol):
    """All links of a process, as a cut uses them."""

    @property
    def is_cut(self) -> bool:
        """True while frames are dropped in a direction. No connection can be established then."""
        ...

    def lose(self, *, is_incoming: bool, is_outgoing: bool) -> None:
        """Drop frames from peers (`is_incoming`) and to peers (`is_outgoing`) from now on."""
        ...

    def break_all(self, reason: str) -> None:
        """Close every connection with a peer; links dial again."""
        ...


class Partition:
    """The cut of a process from its peers."""

    def __init__(self, reactor: Any, links: LosingLinks) -> None:
        self._reactor = reactor
        self._links = links
        self._timer: Any = None

    def cut(self, *, is_incoming: bool, is_outgoing: bool) -> None:
        """Drop all frames in these directions until `heal` is called."""
        self.end()
        self._links.lose(is_incoming=is_incoming, is_outgoing=is_outgoing)
        self._timer = self._reactor.callLater(GIVE_UP_MS / 1000, self._links.break_all, "no acknowledgement")

    def heal(self) -> None:
        """End the cut. Close all connections, because they have lost frames; links dial again."""
        self.end()
        if self._links.is_cut:
            log.warn("the cut from the peers has ended; the links dial again")
            self._links.lose(is_incoming=False, is_outgoing=False)
            self._links.break_all("healed")

    def end(self) -> None:
        """Cancel the timer of a cut."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()


class PartitionEndpoint:
    """The endpoint of POST /cut and /heal. One per process."""

    def __init__(self, reactor: Any, links: LosingLinks, token: bytes) -> None:
        """`token` is the bearer token of a request; never empty."""
        assert token
        self._reactor = reactor
        self._partition = Partition(reactor, links)
        self._token = token
        self._end: Any = None

    def answer_cut(self, request: Any) -> None:
        """Handle POST /cut (`coord.http`)."""
        if not self._is_allowed(request):
            return
        direction = _word(request, b"direction") or "both"
        try:
            seconds = float(_word(request, b"for_s"))
        except ValueError:
            seconds = 0.0
        if direction not in DIRECTIONS:
            _answer(request, 400, f"direction is one of {', '.join(DIRECTIONS)}")
        elif not 0 < seconds <= CUT_S_MAX:
            _answer(request, 400, f"for_s is a number of seconds, at most {CUT_S_MAX:g}")
        else:
            self.cut(direction, seconds)
            _answer(request, 200, "cut")

    def answer_heal(self, request: Any) -> None:
        """Handle POST /heal."""
        if self._is_allowed(request):
            self.heal()
            _answer(request, 200, "healed")

    def cut(self, direction: str, seconds: float) -> None:
        """Drop all frames in `direction` until `heal` is called, for `seconds` at most."""
        assert direction in DIRECTIONS
        self._drop_timer()
        log.warn(
            "a drill cuts this process off from its peers for {seconds:g} s: direction {direction}",
            seconds=seconds,
            direction=direction,
        )
        self._partition.cut(is_incoming=direction in ("both", "in"), is_outgoing=direction in ("both", "out"))
        self._end = self._reactor.callLater(seconds, self.heal)

    def heal(self) -> None:
        """End the cut."""
        self._drop_timer()
        self._partition.heal()

    def _drop_timer(self) -> None:
        if self._end is not None and self._end.active():
            self._end.cancel()

    def _is_allowed(self, request: Any) -> bool:
        given = request.getHeader(b"authorization") or b""
        token = given[len(_BEARER) :] if given.startswith(_BEARER) else b""
        if request.method != b"POST":
            _answer(request, 405, "Only POST.")
        elif not hmac.compare_digest(token, self._token):
            _answer(request, 401, "The request must carry the token in admin.json of the data directory.")
        else:
            return True
        return False


def _word(request: Any, name: bytes) -> str:
    """Return the first value of a parameter, or "" without one."""
    values = request.args.get(name) or [b""]
    return str(values[0].decode(errors="replace"))


def _answer(request: Any, status: int, text: str) -> None:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"text/plain; charset=utf-8")
    request.write(text.encode() + b"\n")
    request.finish()
