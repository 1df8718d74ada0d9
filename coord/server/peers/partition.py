"""Cutting a node off from its peers, for drills: what a network partition is, on one machine and without root.

`POST /cut?for_s=30&direction=both` on the admin port, only of a node that was started with `--drill-links` (a local
cluster does so), and only with the token of `admin.json`. `direction` is as this node sees it: `out` loses what it
sends to its peers, `in` what they send to it. `POST /heal` ends it; so does the time, should nobody come back.

A cut behaves as one in the network does. Nothing is refused: what is sent is taken and gets lost, what arrives is
thrown away, nobody is told. Dialling gets no answer. After `link_context.GIVE_UP_MS` without one, connections break, as
the kernel would break them: acknowledgements do not come through, whichever direction is cut. Clients, and this
process, know nothing of it.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

from twisted.logger import Logger

from coord.server.peers.link import PeerLinks
from coord.server.peers.link_context import GIVE_UP_MS

log = Logger()

CUT_PATH: Final = b"/cut"
HEAL_PATH: Final = b"/heal"
#: Longest cut, in seconds: a drill that died must not leave a store in pieces.
CUT_S_MAX: Final = 300.0
DIRECTIONS: Final = ("both", "in", "out")
_BEARER: Final = b"Bearer "


class CutDoor:
    """Answers POST /cut and /heal. One per node."""

    def __init__(self, reactor: Any, links: PeerLinks, token: bytes) -> None:
        """`token`: what a request must bring; never empty."""
        assert token
        self._reactor = reactor
        self._links = links
        self._token = token
        self._timers: list[Any] = []

    def answer_cut(self, request: Any) -> None:
        """A request has come in (`coord.http`)."""
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
        """A request has come in."""
        if self._is_allowed(request):
            self.heal()
            _answer(request, 200, "healed")

    def cut(self, direction: str, seconds: float) -> None:
        """From now on what goes in that direction, or both, is lost; for so long at most."""
        self._drop_timers()
        log.warn("a drill cuts this node off: direction {direction}", direction=direction)
        self._links.lose(is_incoming=direction in ("both", "in"), is_outgoing=direction in ("both", "out"))
        self._timers = [
            self._reactor.callLater(GIVE_UP_MS / 1000, self._links.break_all, "no acknowledgement"),
            self._reactor.callLater(seconds, self.heal),
        ]

    def heal(self) -> None:
        """What is sent arrives again, over new connections: the old ones have lost frames."""
        self._drop_timers()
        if self._links.is_cut:
            log.warn("a drill heals the links of this node")
            self._links.lose(is_incoming=False, is_outgoing=False)
            self._links.break_all("healed")

    def _drop_timers(self) -> None:
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        self._timers = []

    def _is_allowed(self, request: Any) -> bool:
        given = request.getHeader(b"authorization") or b""
        token = given[len(_BEARER) :] if given.startswith(_BEARER) else b""
        if request.method != b"POST":
            _answer(request, 405, "Only POST.")
        elif not hmac.compare_digest(token, self._token):
            _answer(request, 401, "The token in admin.json of the data directory is needed.")
        else:
            return True
        return False


def _word(request: Any, name: bytes) -> str:
    """The first value of a parameter, "" when it was not given."""
    values = request.args.get(name) or [b""]
    return str(values[0].decode(errors="replace"))


def _answer(request: Any, status: int, text: str) -> None:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"text/plain; charset=utf-8")
    request.write(text.encode() + b"\n")
    request.finish()
