"""Limits on what a peer may claim in a Raft message.

The core trusts the members of its group, but not every byte that arrives in their name. A message that exceeds a limit,
or contradicts itself or the receiver, raises InvalidMessage before any change; the shell closes the link. Code must not
assert on a claim of a peer: a wrong claim is a protocol error, not a bug of this node. `check_message` checks the
message alone, `check_claims` compares it with the receiver's term and log.
"""

from __future__ import annotations

from typing import Final

from coord.errors import InvalidMessage
from coord.raft.log import RaftLog
from coord.raft.membership import decode_configuration
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    COMMIT,
    CONFIG,
    HEARTBEAT,
    HEARTBEAT_RESP,
    LEVEL,
    NORMAL,
    PRE_VOTE,
    READ_INDEX_RESP,
    SNAPSHOT,
    Entry,
    Message,
)

#: Terms, indexes and read contexts are below this. With an election every millisecond a group reaches it in 146
#: million years. Numbers are stored and sent as signed 64-bit integers, so a node can still add to any of them.
NUMBER_MAX: Final = 1 << 62
TERM_MAX: Final = NUMBER_MAX
INDEX_MAX: Final = NUMBER_MAX
#: Limit of a message's term above the receiver's. A group with ten elections a second would need 13 years for that, so
#: no member meets a larger gap when it returns. Without this limit one forged message could raise a node to the last
#: term. A node in term 0 accepts any term: it may be a new member of an old group.
TERM_LEAP_MAX: Final = 1 << 32


def check_message(m: Message) -> None:
    """Raise InvalidMessage for a message that breaks a limit or contradicts itself."""
    kind = m.kind
    if kind < PRE_VOTE or kind > READ_INDEX_RESP:
        raise InvalidMessage(f"node {m.src} sent a message of unknown kind {kind}")
    if m.term >= TERM_MAX or m.prev_term > m.term:
        raise InvalidMessage(f"node {m.src} claims term {m.term}, and an entry of term {m.prev_term}")
    if m.entries is not None:
        if kind != APPEND:
            raise InvalidMessage(f"node {m.src} sent entries in a message of kind {kind}")
        _check_entries(m, m.entries)
    if (m.snapshot is not None) != (kind == SNAPSHOT):
        raise InvalidMessage(f"node {m.src} sent a message of kind {kind} that lacks a snapshot, or must not have one")
    if m.snapshot is not None:
        meta = m.snapshot
        if meta.index >= INDEX_MAX or meta.term > m.term or not meta.config.voters:
            raise InvalidMessage(f"node {m.src} offers a snapshot at {meta.index} of term {meta.term} in term {m.term}")


def _check_entries(m: Message, entries: list[Entry]) -> None:
    index = m.prev_index
    term = m.prev_term
    for entry in entries:
        index += 1
        if entry.index != index or entry.term < term or entry.term > m.term or entry.kind < NORMAL:
            raise InvalidMessage(
                f"node {m.src} sent entry {entry.index} of term {entry.term} at position {index}, after term {term},"
                f" in a message of term {m.term}"
            )
        if entry.kind > LEVEL:
            raise InvalidMessage(f"node {m.src} sent entry {index} of unknown kind {entry.kind}")
        if entry.kind == CONFIG:
            _check_config(m.src, entry)
        term = entry.term
    if index >= INDEX_MAX:
        raise InvalidMessage(f"node {m.src} sent entry {index}, above the highest index")


def _check_config(src: int, entry: Entry) -> None:
    try:
        config = decode_configuration(entry.data)
    except ValueError as error:
        raise InvalidMessage(f"node {src} sent a malformed configuration as entry {entry.index}: {error}") from error
    if not config.voters:
        raise InvalidMessage(f"node {src} sent a configuration without voters as entry {entry.index}")


def check_claims(m: Message, term: int, log: RaftLog, newest_round: int) -> None:
    """Raise InvalidMessage for a message that contradicts facts that its receiver, in `term`, knows.

    The message is of `term` or a later one. `newest_round` is the receiver's newest round of read confirmation, -1
    unless the receiver leads.
    """
    if m.term - term > TERM_LEAP_MAX and term > 0:
        raise InvalidMessage(f"node {m.src} claims term {m.term}, this node is in term {term}")
    kind = m.kind
    if kind == APPEND:
        _check_append(m, log)
    if newest_round < 0 or m.term > term:
        return
    if kind == APPEND_RESP:
        if m.granted and m.match_index > log.last:
            raise InvalidMessage(f"node {m.src} acknowledges {m.match_index}, the log ends at {log.last}")
    elif kind == HEARTBEAT_RESP:
        if m.context > newest_round:
            raise InvalidMessage(f"node {m.src} replies to read round {m.context}, the newest is {newest_round}")
    elif kind in (APPEND, HEARTBEAT, COMMIT, SNAPSHOT):
        raise InvalidMessage(f"node {m.src} claims to lead term {term}, which this node leads")


def _check_append(m: Message, log: RaftLog) -> None:
    """Raise InvalidMessage if the entries of an append contradict a committed entry: Raft §5.4, leader completeness."""
    commit = log.commit
    place = commit - m.prev_index - 1
    claimed = m.prev_term
    if place >= 0:
        entries = m.entries
        if entries is None or place >= len(entries):
            return
        claimed = entries[place].term
    elif place < -1:
        return
    own = log.term_at(commit)
    if claimed != own:
        raise InvalidMessage(
            f"node {m.src} sent entry {commit} of term {claimed}; this node has committed an entry of term {own} there"
        )
