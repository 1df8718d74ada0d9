"""`rk history`: every step of every transition, as the masters recorded it.

The command reads the store, so it covers all masters and works without an active one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from rich.text import Text

from cli.common import output
from cli.common.connect import Cluster
from cli.common.names import Names
from cli.common.output import count
from cli.diagnose.follow import describe
from regions.cluster import history as history_
from regions.cluster.history import (
    EPOCH_BEGINS,
    GAP,
    SERVER_DOWN,
    SERVER_UP,
    CorruptSegment,
    complete_history,
    parse_segment,
    servers_found,
    stamped,
    unpack,
)
from regions.records.model import RegionState
from regions.records.replica_key import parse_replica_key
from regions.records.znodes import CorruptZnode, decode_transition
from regions.transitions import entries as entries_
from regions.transitions.entries import FORCED, HistoryEntry
from regions.transitions.states import Actor
from regions.transitions.steps import entries_kept

#: Number of reads of the list of segments if some were merged meanwhile.
_READ_AGAIN: Final = 3
#: A step to one of these ends the trouble of earlier steps; the record still has the last error.
_CURED: Final = (RegionState.OPENED.value, "")


class HistoryLine(msgspec.Struct):
    """One line of `rk history`: an entry with names for people."""

    time_ms: int
    region: str
    replica: int
    table: str
    before: str
    after: str
    actor: str
    cause: str
    server: str
    epoch: int
    attempt: int = 0
    plan: str = ""
    reason: str = ""
    error: str = ""
    #: Number of steps before this one that are counted, but have no times.
    missed: int = 0
    #: Id of the request, znode event, timer ... that began the work, "" in entries of earlier builds; and its
    #: description, with the first step of each replica.
    cause_id: str = ""
    origin: str = ""
    #: For an event that is not a step: its description, and the table of a request.
    text: str = ""
    subject: str = ""
    #: Zxid of the write that recorded the entry; 0 if unknown, as for steps of servers.
    zxid: int = 0


class HistoryView:
    """The history with the names of all servers and masters in it."""

    def __init__(self, entries: list[HistoryEntry], names: Names, unreadable: list[str]) -> None:
        self.entries = entries
        self.names = names
        self.unreadable = unreadable
        self._tenures = {one.epoch: one.server for one in entries if one.cause == EPOCH_BEGINS}
        for one in entries:
            if one.cause in (EPOCH_BEGINS, SERVER_UP, SERVER_DOWN) and one.detail:
                names.remember(one.server, one.detail)
            for uuid, address in servers_found(one).items():
                if not names.knows(uuid):
                    names.remember(uuid, address)

    def actor(self, entry: HistoryEntry) -> str:
        """Return the actor of a step: a master by its epoch, a server by its name."""
        if entry.actor == Actor.MASTER.value:
            uuid = self._tenures.get(entry.epoch)
            return self.names.of_uuid(uuid) if uuid else f"master of epoch {entry.epoch}"
        return self.names.of_uuid(entry.server) if entry.server else entry.actor

    def step(self, entry: HistoryEntry, tables: dict[str, str]) -> HistoryLine:
        """Return an entry as it is printed."""
        table_id = entry.region_id.rpartition(".")[0]
        return HistoryLine(
            entry.at_ms,
            entry.region_id,
            parse_replica_key(entry.key)[1] if entry.key else 0,
            tables.get(table_id, table_id),
            entry.before,
            entry.after,
            self.actor(entry),
            entry.cause,
            self.names.of_uuid(entry.server) if entry.server else "",
            entry.epoch,
            entry.attempt,
            entry.plan_id,
            entry.reason,
            self._error(entry),
            entry.missed,
            entry.cause_id,
            entry.origin,
            self._text(entry),
            entry.subject,
            entry.zxid,
        )

    def _error(self, entry: HistoryEntry) -> str:
        """Return the error of a step, with names; "" for a step that cured it."""
        is_error = entry.region_id and (entry.after not in _CURED or entry.cause == FORCED)
        return self.names.in_sentence(entry.detail) if is_error else ""

    def _text(self, entry: HistoryEntry) -> str:
        """Return the description of an event that is not a step."""
        if entry.key or entry.cause == FORCED:
            return ""
        server = self.names.of_uuid(entry.server) if entry.server else ""
        match entry.cause:
            case history_.EPOCH_BEGINS:
                return f"{server} becomes active, epoch {entry.epoch}"
            case history_.SERVER_UP:
                return f"{server} has registered"
            case history_.SERVER_DOWN:
                return f"{server} is gone"
            case history_.SERVER_FENCED:
                _, _, reason = entry.detail.partition(" ")
                return f"{server} is fenced{f': {reason}' if reason else ''}"
            case history_.SERVERS:
                found = [self.names.of_uuid(uuid) for uuid in servers_found(entry)]
                return f"{count(len(found), 'server')} registered: {', '.join(sorted(found))}" if found else "no server"
            case history_.DRAIN_BEGINS:
                return f"{server} is to be emptied"
            case history_.DRAIN_ENDS:
                return f"{server} may get regions again"
            case entries_.REQUEST | entries_.REFUSED:
                caller = entry.origin.rpartition(" from ")[2] if " from " in entry.origin else ""
                is_named = " at " in caller  # a secured cluster knows the user
                who = caller if is_named else f"operator at {caller}" if caller else "operator"
                refused = "refused: " if entry.cause == entries_.REFUSED else ""
                return f"{who}: {refused}{self.names.in_text(entry.detail)}"
            case _:
                return f"{entry.cause}: {self.names.in_text(entry.detail or entry.reason)}"


def read_past(cluster: Cluster, names: Names) -> HistoryView:
    """Return the whole history in the store, oldest first."""
    layout = cluster.layout
    unreadable: list[str] = []
    kept = _kept(cluster, unreadable)  # before the segments: see `complete_history`
    for _ in range(_READ_AGAIN):
        segments = sorted(one for name in cluster.children(layout.history) if (one := parse_segment(name)) is not None)
        values = cluster.get_stats({one.name: layout.segment(one.name) for one in segments})
        if len(values) == len(segments):
            break  # else some were merged or deleted during the reads: the present list shows where they are
    entries: list[HistoryEntry] = []
    for one in segments:
        if one.name in values:
            try:
                data, stat = values[one.name]
                entries += stamped(unpack(data), stat.czxid)
            except CorruptSegment as error:
                unreadable.append(f"{layout.segment(one.name)}: {error}")
    return HistoryView(complete_history(entries, kept), names, unreadable)


def _kept(cluster: Cluster, unreadable: list[str]) -> list[HistoryEntry]:
    """Return the steps of servers that only the transitions' znodes keep so far."""
    found: list[HistoryEntry] = []
    for path, (data, stat) in cluster.get_stats({path: path for path in cluster.transitions_left()}).items():
        try:
            kept = entries_kept(decode_transition(data, path), stat.version)
            if kept:  # the latest step is the latest write of the znode
                kept[-1] = msgspec.structs.replace(kept[-1], zxid=stat.mzxid)
            found += kept
        except CorruptZnode as error:
            unreadable.append(str(error))
    return found


def lines(steps: Iterable[HistoryLine], *, zxids: bool = False) -> Iterable[Text]:
    """Yield the steps for people, each with date, time and zone, and with its zxid as far as it is known."""
    for one in steps:
        text = _line(one)
        yield text.append(f"  zxid {one.zxid:#x}" if one.zxid else "  zxid unknown", style="dim") if zxids else text


def _line(one: HistoryLine) -> Text:
    text = Text(f"{output.moment(one.time_ms)}  ")
    if one.text:
        return _with_cause(text.append(f"** {one.text}", style="bold"), one)
    text.append(f"{one.table} {one.region}")
    if one.replica:
        text.append(f" #{one.replica}")
    if one.cause == FORCED:
        return text.append(f"  {FORCED} by an operator, carried out by {one.server}: {one.error}", style="bold red")
    if one.cause == GAP:
        between = f"{one.before or 'no transition'} and {one.after or 'its end'}"
        return text.append(f"  the steps between {between} were not recorded", style="dim")
    more = f" (and {count(one.missed, 'step')} before, of unknown time)" if one.missed else ""
    text.append(f"  {describe(one.before, one.after)}{more}", style="cyan")
    on = f"on {one.server}" if one.server and one.server != one.actor else ""
    reason = f"({one.reason})" if one.reason else ""
    tries = f"attempt {one.attempt}" if one.attempt else ""
    tail = [f"by {one.actor}", on, " ".join(part for part in (one.cause, reason) if part), tries, one.error]
    text.append("  " + "  ".join(part for part in tail if part))
    return _with_cause(text, one, one.origin)


def _with_cause(text: Text, one: HistoryLine, origin: str = "") -> Text:
    if one.cause_id:
        text.append(f"  [{one.cause_id}{f': {origin}' if origin else ''}]", style="dim")
    return text
