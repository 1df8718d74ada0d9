"""Changes of members in the process of a server: requests, consensus metadata, questions for copies.

Every method is called on the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from coord import kill_points
from coord.raft.log import CommittedConfig
from coord.raft.membership import decode_configuration
from coord.raft.messages import CONFIG
from regions.messages.server import MemberEndpoint
from regions.messages.tablets import ChangeAnswer, ChangeConfig, ConfigChanged
from regionserver.tablets.disk.consensus_meta import ConsensusMeta, with_promise
from regionserver.tablets.host.delivery import TombstoneVote
from regionserver.tablets.host.members import answer_of, endpoints_of
from regionserver.tablets.host.output import TurnOutput
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.host.wanted_copies import CopyWanted
from regionserver.tablets.members.notes import NOTES_EVERY_S, ConfigNote, ConfigNotes
from regionserver.workers import Workers

log = Logger()

#: Asks a member's server for a copy. The Deferred fires when the server has answered, or will not.
AskForCopy = Callable[[CopyWanted], Deferred[Any]]


def appended_reached(out: TurnOutput) -> None:
    """Pass the points after the log's write of a turn that had configurations."""
    for entry in [entry for items in out.log for entry in items.entries if entry.kind == CONFIG]:
        kill_points.config_reached("appended", decode_configuration(entry.data))


class NotedReplica(Protocol):
    """A replica of this process, with the consensus metadata that its file has or is about to have."""

    meta: ConsensusMeta | None

    @property
    def number(self) -> int:
        """The member that the replica is, or was."""
        ...


class MembersWork:
    """See the module docstring."""

    def __init__(
        self,
        turn: Turn,
        replicas: Mapping[str, NotedReplica],
        write: Callable[[ConsensusMeta], str],
        write_all: Callable[[Sequence[ConsensusMeta]], list[str]],
        files_pool: Workers,
        *,
        later: Callable[[float, Callable[[], None]], object],
        new_request: Callable[[str], tuple[int, Deferred[TabletAnswer]]],
        soon: Callable[[], None],
        changed: Callable[[str], None],
        learn: Callable[[MemberEndpoint], None],
    ) -> None:
        """`write` and `write_all` make consensus metadata durable, on a thread of `files_pool`; they return "" or why
        not, for each. `later` calls a function after that many seconds."""
        self._turn = turn
        self._replicas = replicas
        self._write = write
        self._files_pool = files_pool
        self._new_request = new_request
        self._soon = soon
        self._changed = changed
        self._learn = learn
        # In tests that kill the process between two steps, each configuration has a step of its own.
        every_s = 0.0 if kill_points.is_wanted() else NOTES_EVERY_S
        self._notes = ConfigNotes(
            write_all, files_pool, later, is_wanted=self._is_wanted, noted=self._noted, every_s=every_s
        )
        #: None if no server can be asked.
        self.ask_for_copy: AskForCopy | None = None

    # --- requests -----------------------------------------------------------------------------------------------------

    def change(self, change: ChangeConfig) -> Deferred[ConfigChanged | Fate]:
        """Change a member. Fires with the answer; with the fate of the request if no replica runs here, or if
        leadership ended before the change was committed."""
        tablet = change.region_id
        endpoint = MemberEndpoint(change.number, change.uuid, change.host, change.peer_port)
        self._learn(endpoint)
        request, answer = self._new_request(tablet)
        self._turn.change_config(tablet, request, change)
        self._soon()
        return answer.addCallback(self._answered, tablet)

    def _answered(self, answer: TabletAnswer, tablet: str) -> ConfigChanged | Fate:
        if answer.fate is Fate.REFUSED:
            assert isinstance(answer.value, ConfigChanged), answer.value
            return answer.value
        group = self._turn.groups.get(tablet)
        if answer.fate is not Fate.DONE or group is None or group.failure:
            return answer.fate
        return answer_of(group.core, group.servers, ChangeAnswer.DONE)

    def transfer(self, tablet: str, to: int) -> ConfigChanged | None:
        """Hand leadership over. Return the answer, None if no replica runs here."""
        answer = self._turn.transfer(tablet, to)
        self._soon()
        return answer

    def is_member(self, tablet: str) -> bool:
        """Return True if the latest configuration that this server knows to be committed has its number."""
        replica = self._replicas.get(tablet)
        if replica is None:
            return False
        group = self._turn.groups.get(tablet)
        if group is not None and not group.failure:
            return group.core.committed_config().config.is_member(replica.number)
        return replica.meta is None or replica.meta.members().is_member(replica.number)

    # --- the turn -----------------------------------------------------------------------------------------------------

    def note(self, out: TurnOutput) -> None:
        """Carry out a turn's output about members."""
        for tablet, found in out.configs:
            self._note_config(tablet, found)
        for wanted in out.copies:
            self._ask(wanted)
        for vote in out.votes:
            self._note_vote(vote)

    def _note_config(self, tablet: str, found: CommittedConfig) -> None:
        """Report a committed configuration, and make it durable. Until then the log keeps its entry."""
        if kill_points.is_wanted():
            kill_points.config_reached("committed", found.config)
        replica = self._replicas[tablet]
        for endpoint in endpoints_of(found.config):
            self._learn(endpoint)
        self._changed(tablet)
        meta = replica.meta
        if meta is None:
            return
        # Term and vote stay as they were written: those in the log count.
        meta = replace(meta, config_term=found.term, config_index=found.index, configuration=found.config.encode())
        replica.meta = meta
        self._notes.put(tablet, ConfigNote(replica, meta, found))

    def _is_wanted(self, tablet: str, note: ConfigNote) -> bool:
        """Return False for a note of a replica that has been stopped: its files may be gone."""
        replica = self._replicas.get(tablet)
        if replica is None or replica is not note.replica or tablet not in self._turn.groups:
            return False
        return replica.meta is note.meta

    def _noted(self, tablet: str, note: ConfigNote) -> None:
        if self._replicas.get(tablet) is note.replica:
            if kill_points.is_wanted():
                kill_points.config_reached("noted", note.config.config)
            self._turn.noted(tablet, note.config.index)

    def _note_vote(self, vote: TombstoneVote) -> None:
        """Make the vote of a tombstone durable, then send it. A tombstone without consensus metadata does not vote."""
        replica = self._replicas.get(vote.tablet)
        if replica is None or replica.meta is None:
            return
        replica.meta = meta = with_promise(replica.meta, vote.term, vote.vote)

        def written(result: str | Exception) -> None:
            if result:
                log.error("the vote of {tablet} cannot be written: {why}", tablet=vote.tablet, why=str(result))
            else:
                self._turn.voted(vote)
                self._soon()

        self._files_pool.submit(lambda: self._write(meta), written)

    def _ask(self, wanted: CopyWanted) -> None:
        if self.ask_for_copy is None:
            self._turn.copy_answered(wanted.tablet, wanted.number)
            return
        asked = self.ask_for_copy(wanted)
        asked.addErrback(lambda failure: log.failure("question for a copy of {tablet}", failure, tablet=wanted.tablet))

        def answered(is_accepted: bool | None) -> None:
            if not is_accepted:
                self._turn.copy_answered(wanted.tablet, wanted.number)

        asked.addCallback(answered)
