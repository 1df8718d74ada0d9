"""One-line descriptions of the inputs and outputs of the Raft core, for transcripts and the simulation."""

from __future__ import annotations

from typing import Final

from coord.raft.core import RaftCore
from coord.raft.leadership import Leadership
from coord.raft.membership import FIRST_MEMORY
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    COMMIT,
    CONFIG,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEVEL,
    NOOP,
    PRE_VOTE,
    READ_INDEX,
    READ_INDEX_RESP,
    ROLE_NAMES,
    SNAPSHOT,
    TIMEOUT_NOW,
    VOTE,
    Entry,
    HardState,
    Message,
    RaftSnapshot,
    Ready,
)
from coord.raft.progress import Progress

MESSAGE_NAMES: Final = [
    "?",
    "PreVote",
    "PreVoteResp",
    "Vote",
    "VoteResp",
    "Append",
    "AppendResp",
    "Heartbeat",
    "HeartbeatResp",
    "Commit",
    "Snapshot",
    "TimeoutNow",
    "ReadIndex",
    "ReadIndexResp",
]
PROGRESS_NAMES: Final = ["probe", "replicate", "snapshot"]

#: Data longer than this is shown by its length.
SHOWN_BYTES: Final = 24


def entry(e: Entry) -> str:
    """Return an entry as `4/17 "data"`: term, index and content."""
    position = f"{e.term}/{e.index}"
    if e.kind == NOOP:
        return f"{position} noop"
    if e.kind == CONFIG:
        return f"{position} config"
    if e.kind == LEVEL:
        return f"{position} level"
    if len(e.data) > SHOWN_BYTES:
        return f"{position} {len(e.data)} bytes"
    return f'{position} "{e.data.decode("ascii", "backslashreplace")}"'


def entries(several: list[Entry]) -> str:
    """Return entries in brackets; of a long list the first and last."""
    if len(several) > 6:
        return f"[{entry(several[0])} .. {entry(several[-1])}]"
    return "[" + ", ".join(entry(e) for e in several) + "]"


def snapshot(meta: RaftSnapshot) -> str:
    """Return a snapshot as `4/17 voters=1,2,3`."""
    return f"{meta.term}/{meta.index} {meta.config}"


def hard_state(state: HardState) -> str:
    """Return a hard state as `term=4 vote=2`."""
    return f"term={state.term} vote={state.vote}"


def message(m: Message) -> str:
    """Return a message as `1->2 Append term=4 prev=3/16 commit=16 [4/17 "x"]`, with the fields of its kind."""
    text = f"{m.src}->{m.dst} {MESSAGE_NAMES[m.kind]} term={m.term}"
    kind = m.kind
    if kind in (PRE_VOTE, VOTE):
        text += f" last={m.prev_term}/{m.prev_index}" + (" handed-over" if m.granted else "")
    elif kind == APPEND:
        text += f" prev={m.prev_term}/{m.prev_index} commit={m.commit} {entries(m.entries or [])}"
    elif kind == APPEND_RESP:
        if m.granted:
            text += f" match={m.match_index}"
        else:
            text += f" refused prev={m.prev_index} hint={m.prev_term}/{m.match_index}"
    elif kind == HEARTBEAT:
        text += f" commit={m.commit}" + (f" round={m.context}" if m.context else "")
    elif kind == HEARTBEAT_RESP:
        text += f" last={m.match_index}" + (f" round={m.context}" if m.context else "")
    elif kind == COMMIT:
        text += f" commit={m.prev_term}/{m.commit}"
    elif kind == SNAPSHOT:
        text += f" {snapshot(m.snapshot)}" if m.snapshot is not None else ""
    elif kind == READ_INDEX:
        text += f" context={m.context}" + (" patient" if m.granted else "")
    elif kind == READ_INDEX_RESP:
        text += f" context={m.context} index={m.match_index}"
    elif kind != TIMEOUT_NOW:
        text += " granted" if m.granted else " refused"
    if m.memory != FIRST_MEMORY:
        text += f" memory={m.memory:x}"
    return text


def ready(r: Ready) -> list[str]:
    """Return a Ready as lines, in the order in which the shell handles its parts; none for an empty one."""
    lines = [f"! {event.name} {event.detail} (term {event.term})" for event in r.events]
    if r.snapshot is not None:
        lines.append(f"install {snapshot(r.snapshot)}")
    if r.hard_state is not None:
        lines.append(f"save {hard_state(r.hard_state)}")
    if r.entries:
        lines.append(f"append {entries(r.entries)}")
    lines.extend(f"send {message(m)}" for m in r.messages)
    lines.extend(f"then {message(m)}" for m in r.messages_after_persist)
    if r.committed:
        lines.append(f"apply {entries(r.committed)}")
    lines.extend(f"read context={state.context} at {state.index}" for state in r.read_states)
    return lines


def progress(p: Progress) -> str:
    """Return a peer's progress as `2 replicate match=16 next=18 in_flight=1`."""
    text = f"{p.peer} {PROGRESS_NAMES[p.state]} match={p.match} next={p.next}"
    if p.in_flight():
        text += f" in_flight={p.in_flight()}"
    if p.waiting:
        text += " waiting"
    if p.snapshot_index:
        text += f" snapshot={p.snapshot_index}"
    if not p.counts:
        text += f" forgotten memory={p.memory:x}"
    return text


def leadership(lead: Leadership) -> list[str]:
    """Return one line for each peer."""
    return [progress(p) for p in lead.peers]


def core(c: RaftCore) -> str:
    """Return the state of a core as `1 leader term=4 leader=1 log=0..17 stable=16 commit=16 applied=15`."""
    log = c.log
    return (
        f"{c.id} {ROLE_NAMES[c.role]} term={c.term} vote={c.vote} leader={c.leader}"
        f" log={log.offset}..{log.last_term}/{log.last} stable={log.stable} commit={log.commit} applied={log.applying}"
    )
