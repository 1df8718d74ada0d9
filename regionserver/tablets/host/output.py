"""Output of a turn of the host, and messages that wait for its writes. Pure."""

from __future__ import annotations

from coord.raft.log import CommittedConfig
from coord.raft.messages import Entry, Message, RaftEvent
from coord.storage.shared.items import SlotItems
from regionserver.tablets.host.beats import BeatOutput
from regionserver.tablets.host.delivery import TombstoneVote
from regionserver.tablets.host.envelope import Item
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.requests import ReadyRead, TabletAnswer
from regionserver.tablets.host.wanted_copies import CopyWanted


class TurnOutput:
    """Output of a turn; see `turn.py`."""

    def __init__(self) -> None:
        self.frames: dict[str, list[Item]] = {}
        self.beats: dict[str, BeatOutput] = {}
        self.log: list[SlotItems] = []
        #: Number of the write of `log`, 0 if there is nothing to write.
        self.log_number: int = 0
        self.rounds: dict[str, list[Entry]] = {}
        self.reads: list[ReadyRead] = []
        self.answers: list[TabletAnswer] = []
        #: (tablet, event) of Raft, for the process's own log.
        self.events: list[tuple[str, RaftEvent]] = []
        #: Tablets that were parked in this turn, with the reason.
        self.failed: list[tuple[str, str]] = []
        #: (tablet, server, reason) of messages that no correct server sends.
        self.rejected: list[tuple[str, str, str]] = []
        #: (tablet, member, index): a member needs the entries from `index` on, which its leader no longer has in
        #: memory. The shell reads them from the disk, then calls `loaded`.
        self.needs_log: list[tuple[str, int, int]] = []
        #: Configurations that have been committed. Write them to the consensus metadata, then call `noted`.
        self.configs: list[tuple[str, CommittedConfig]] = []
        #: Votes of removed replicas. Make each durable, then call `voted`.
        self.votes: list[TombstoneVote] = []
        #: Members whose servers must be asked for a copy; the shell calls `copy_answered` for each.
        self.copies: list[CopyWanted] = []


class HeldWrite:
    """The Readies of groups whose data is in one write, and the messages that are sent once the write is durable."""

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.readies: list[tuple[Group, int]] = []
        self.promises: list[tuple[Group, list[Message]]] = []
