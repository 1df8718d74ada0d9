"""Quiet groups: tablets without work have no ticks and send no messages. Pure.

    awake --- QUIET_TICKS without work ---> quiet --- work, or a doubt about the leader ---> awake

A leader makes its group quiet when all members have and have applied all entries, no work is under way, and a majority
of the voters' servers is alive. It sends QUIET to its followers. A follower that agrees becomes quiet; another one
replies WAKE, and the leader continues as before. Members on servers that are gone are left out, so that one dead server
does not keep all groups of the others awake (TiKV #19070, Cockroach #9446).

A quiet group wakes by

- a request of a client, a master or an operator,
- a message, except a late reply to a heartbeat without new information,
- the loss of its leader's server: a broken connection, SILENCE_TICKS without a BEAT, a disk that does not answer, or
  another start code. A quick restart counts as a loss, because the new process does not lead. The follower forgets the
  leader at once, and votes for another one (TiKV #16429, #18916),
- on the leader: the return of a member's server, and the loss of a majority of the servers,
- LEFT, which a leading replica sends when it stops.

A follower that wakes by itself sends WAKE to its leader. BEATs prove for all groups that a server is alive. So no
failure goes unnoticed while a group is quiet: messages over a connection arrive, or the connection breaks.

Source: docs/tablets.md, Quiet tablets; Cockroach's quiescence and TiKV's hibernated regions have the same purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Final

from coord.raft.messages import FOLLOWER, HEARTBEAT_RESP, Message
from coord.raft.quorum import majority
from regionserver.tablets.host.beats import Beats
from regionserver.tablets.host.envelope import Item, Quiet, QuietWord
from regionserver.tablets.host.group import HEARTBEAT_TICKS, Group

#: Ticks without work after which a group becomes quiet: 1 s.
QUIET_TICKS: Final = 20
#: Groups that wake at one tick because a server was lost or came back. Requests of clients do not wait for this.
WAKES_PER_TICK: Final = 1000
#: A quiet tablet is looked at in one of this many looks.
QUIET_LOOKS: Final = 10


class QuietGroups:
    """The awake groups of a server, and the groups that must wake up."""

    def __init__(
        self,
        beats: Beats,
        quiet_ticks: int,
        reads_quiet: Callable[[str], bool],
        send: Callable[[str, Item], None],
        run: Callable[..., None],
    ) -> None:
        """
        Args:
            beats: The live servers.
            quiet_ticks: Ticks without work after which a group becomes quiet.
            reads_quiet: Whether the build of a server reads QUIET. Groups with a member on another build stay awake.
            send: Sends an item to a server.
            run: Calls a function with a running group; an exception parks the group.
        """
        self.awake: dict[str, Group] = {}
        self.wakes_per_tick: int = WAKES_PER_TICK
        self._beats = beats
        self._quiet_ticks = quiet_ticks
        self._reads_quiet = reads_quiet
        self._send = send
        self._run = run
        #: Tablet that is led here -> its state at the last look, and the tick at which this state began.
        self._unchanged: dict[str, tuple[tuple[int, int, int], int]] = {}
        #: Quiet tablets that wake at the next ticks, in this order -> the lost server of their leader, "" for another
        #: reason.
        self._due: dict[str, str] = {}
        #: The quiet tablets, and those of them that are led here. A leader remains the leader until its group wakes.
        self.quiet: dict[str, None] = {}
        self.led: dict[str, None] = {}

    def added(self, group: Group) -> None:
        """Begin with a group, which is awake."""
        self.awake[group.replica.tablet] = group

    def leaders(self) -> int:
        """Return the number of groups that are led here. Only awake groups are examined."""
        awake = self.awake.values()
        return len(self.led) + sum(group.core.leadership is not None and not group.failure for group in awake)

    def removed(self, tablet: str) -> None:
        """Forget a group that is gone."""
        for known in (self.awake, self._unchanged, self._due, self.quiet, self.led):
            known.pop(tablet, None)

    def _sleeps(self, group: Group) -> None:
        """Let a group be quiet."""
        tablet = group.replica.tablet
        self.removed(tablet)
        self.quiet[tablet] = None
        if group.core.leadership is not None:
            self.led[tablet] = None

    # --- who becomes quiet --------------------------------------------------------------------------------------------

    def look(self, group: Group) -> None:
        """Make a group quiet that has had no work for long enough. Called at each tick of an awake group.

        Looks between two heartbeats, when the replies to the last one are there.
        """
        lead = group.core.leadership
        if lead is None or lead.now % HEARTBEAT_TICKS != HEARTBEAT_TICKS // 2:
            return
        tablet = group.replica.tablet
        state = (lead.term, lead.log.last, lead.reads.newest)
        known = self._unchanged.get(tablet)
        if known is None or known[0] != state:
            self._unchanged[tablet] = (state, self._beats.now)
        elif self._beats.now - known[1] >= self._quiet_ticks and self._may_be_quiet(group):
            self._say_to_all(group, QuietWord.QUIET)
            self._sleeps(group)

    def _may_be_quiet(self, group: Group) -> bool:
        """Return True if a group that is led here has no work, and its members know everything that the leader
        knows."""
        core, beats = group.core, self._beats
        lead = core.leadership
        if lead is None or not lead.has_committed_in_term() or not group.is_settled():
            return False
        if lead.transferee or core.configs.current.pre_voters:
            return False
        if not beats.disk_answers or beats.is_full or not self._is_majority_there(group):
            return False
        log = core.log
        oldest = lead.now - core.settings.election_ticks
        for peer in lead.peers:
            server = group.servers.get(peer.peer, "")
            if beats.is_there(server):
                runs = peer.counts and peer.last_received > oldest and peer.peer not in group.refusals
                has_all = peer.match == log.last and peer.commit_sent == log.commit
                if not (runs and has_all and self._reads_quiet(server)):
                    return False
        return True

    def _agrees(self, group: Group, quiet: Quiet) -> bool:
        """Return True if a follower has everything that its leader has, and nothing else to do."""
        core = group.core
        is_leader = core.role == FOLLOWER and (core.term, core.leader) == (quiet.term, quiet.src)
        has_all = core.log.last == core.log.commit == quiet.commit
        return is_leader and has_all and group.is_settled() and not core.abstains()

    def _is_majority_there(self, group: Group) -> bool:
        """Return True if a majority of the voters' servers is alive, as far as BEATs show."""
        voters = group.core.configs.current.voters
        own = group.replica.number
        there = sum(voter == own or self._beats.is_there(group.servers.get(voter, "")) for voter in voters)
        return there >= majority(len(voters))

    # --- words --------------------------------------------------------------------------------------------------------

    def received(self, group: Group | None, server: str, quiet: Quiet) -> None:
        """Follow the word of another member, if it is for the replica that runs here."""
        if (
            group is None
            or group.failure
            or quiet.dst != group.replica.number
            or group.servers.get(quiet.src) != server
        ):
            return
        core = group.core
        if quiet.word is QuietWord.LEFT:
            if (core.term, core.leader) == (quiet.term, quiet.src):
                self.wake(group, by=server)
                self._run(group, group.peer_gone, server)
        elif quiet.word is QuietWord.QUIET and self._beats.is_there(server) and self._agrees(group, quiet):
            self._sleeps(group)
        else:
            self.wake(group, by=server)
            if quiet.word is QuietWord.QUIET:
                self._say(group, QuietWord.WAKE, quiet.src)

    def leaves(self, group: Group) -> None:
        """Let the others know that a leader stops. Quiet followers would wait for it for ever."""
        if group.core.leadership is not None:
            self._say_to_all(group, QuietWord.LEFT)

    def _say_to_all(self, group: Group, word: QuietWord) -> None:
        for number in group.servers:
            self._say(group, word, number)

    def _say(self, group: Group, word: QuietWord, to: int) -> None:
        """Send a word to a member whose server is alive and reads it."""
        core = group.core
        server = group.servers.get(to, "")
        if to != core.id and self._beats.is_there(server) and self._reads_quiet(server):
            self._send(server, Quiet(group.replica.tablet, word, core.id, to, core.term, core.log.commit))

    # --- who wakes ----------------------------------------------------------------------------------------------------

    def wake(self, group: Group, by: str = "") -> None:
        """Wake a group. `by` is the server whose message wakes it, "" if there is another reason."""
        tablet = group.replica.tablet
        if group.failure or tablet in self.awake:
            return
        self.awake[tablet] = group
        self.quiet.pop(tablet, None)
        self.led.pop(tablet, None)
        lost = self._due.pop(tablet, "")
        core = group.core
        if core.leadership is not None:
            alive = {number for number, server in group.servers.items() if self._beats.is_there(server)}
            self._run(group, core.leadership.resumed, alive)
        if lost:
            self._run(group, group.peer_gone, lost)
        elif core.leadership is None and group.servers.get(core.leader, by) != by:
            self._say(group, QuietWord.WAKE, core.leader)

    def lost(self, group: Group, server: str) -> None:
        """Handle the loss of a server: wake a quiet group if its leader was there, or if it is led here without a
        majority."""
        core = group.core
        if core.leadership is None:
            if group.servers.get(core.leader) == server:
                self._due[group.replica.tablet] = server
        elif not self._is_majority_there(group):
            self._due.setdefault(group.replica.tablet, "")

    def returned(self, group: Group) -> None:
        """The server of a member is there again: let a quiet group that is led here wake."""
        if group.core.leadership is not None and group.replica.tablet not in self.awake and not group.failure:
            self._due.setdefault(group.replica.tablet, "")

    def take_due(self) -> list[str]:
        """Return the tablets that wake at this tick: `wakes_per_tick` at most."""
        return list(islice(self._due, self.wakes_per_tick)) if self._due else []


class Looks:
    """Chooses the tablets that a periodic look visits. A server may have ten thousand tablets, nearly all of them
    quiet.

    A tablet that is awake, or was awake at the last look, is visited by every look. Every other tablet is visited by
    one look in QUIET_LOOKS.
    """

    def __init__(self) -> None:
        self._number = 0
        self._were_awake: dict[str, None] = {}

    def next(self, tablets: Mapping[str, object], awake: Iterable[str], due: Iterable[str] = ()) -> list[str]:
        """Return those of the `tablets` that this look visits, including the tablets in `due`."""
        self._number += 1
        others = islice(tablets, self._number % QUIET_LOOKS, None, QUIET_LOOKS)
        were_awake, self._were_awake = self._were_awake, dict.fromkeys(awake)
        return [one for one in dict.fromkeys(chain(self._were_awake, were_awake, due, others)) if one in tablets]


def is_news(group: Group, m: Message) -> bool:
    """Return False for a reply to a heartbeat that arrives at a quiet leader and has no new information."""
    core = group.core
    is_reply = m.kind == HEARTBEAT_RESP and m.term == core.term and core.leadership is not None
    return not (is_reply and m.match_index == core.log.last)
