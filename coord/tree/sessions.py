"""Sessions: the replicated table, and the leader's queue of sessions ordered by expiry.

Only commands change the table, which is part of the replicated state. The ExpiryQueue is not replicated: it belongs to
the present leader. A silent session ends when an EXPIRE command is applied. A new leader gives every session its full
timeout again.
"""

from __future__ import annotations

import hmac
import struct
from typing import Final

from crc32c import crc32c

from coord.tree.acl import IP, Identity
from coord.wire.jute import buffer

_SESSION: Final = struct.Struct("!qqi")

#: Limit of identities per session, because sessions are kept in memory. A further AUTH is rejected.
IDENTITIES_MAX: Final = 256


class Session:
    """A client's session, which outlives its connections.

    `owner` is the zxid of the command that created the session or last attached it to a connection. `identities` are
    (scheme, id) pairs; the first is the address of the connection. `digest_part` is the session's part of the digest,
    updated after each change (`refresh`).
    """

    def __init__(self, session_id: int, passwd: bytes, timeout_ms: int, owner: int, identities: list[Identity]) -> None:
        self.session_id: int = session_id
        self.passwd: bytes = passwd
        self.timeout_ms: int = timeout_ms
        self.owner: int = owner
        self.identities: list[Identity] = identities
        self.digest_part: int = 0

    def checksum(self) -> int:
        """Return the up-to-date value of `digest_part`."""
        head = crc32c(self.passwd, crc32c(_SESSION.pack(self.session_id, self.owner, self.timeout_ms)))
        for scheme, identity in self.identities:
            head = crc32c(buffer(identity), crc32c(buffer(scheme), head))
        return head

    def refresh(self) -> int:
        """Update `digest_part`. Return the change of the table's digest."""
        before = self.digest_part
        self.digest_part = self.checksum()
        return self.digest_part - before


class SessionTable:
    """All sessions by id. Changed only by commands."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}
        #: The session found last: commands of one session often follow each other in a batch.
        self._last: Session | None = None
        #: Address -> number of its sessions. Follows from the sessions, so it is not part of the digest.
        self._per_address: dict[bytes, int] = {}
        #: Sum of the `digest_part` of all sessions. Moves with every change of a session.
        self.digest_sum: int = 0

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self.sessions)

    def find(self, session_id: int) -> Session | None:
        """Return the session, or None if it has ended or never existed."""
        last = self._last
        if last is None or last.session_id != session_id:
            last = self._last = self.sessions.get(session_id)
        return last

    def count_at(self, address: bytes) -> int:
        """Return the number of sessions whose connection is, or was last, at this address."""
        return self._per_address.get(address, 0)

    def _count(self, session: Session, change: int) -> None:
        """Count a session for its address, or end the count. The address is the session's first identity."""
        if session.identities:
            address = session.identities[0][1]
            count = self._per_address.get(address, 0) + change
            if count:
                self._per_address[address] = count
            else:
                del self._per_address[address]

    def add(self, session: Session) -> None:
        """Add a new session. Its id must not be in use."""
        assert session.session_id not in self.sessions, f"session {session.session_id:#x} exists already"
        self.sessions[session.session_id] = session
        self._count(session, 1)
        self.digest_sum += session.refresh()

    def attach(self, session: Session, owner: int, timeout_ms: int, address: bytes, proved: list[Identity]) -> None:
        """Move a session to a new connection with the identities `proved`. The identities of the old connection are
        dropped: the client must authenticate again."""
        assert owner > session.owner, f"owner {owner} of session {session.session_id:#x} after {session.owner}"
        session.owner = owner
        session.timeout_ms = timeout_ms
        self._count(session, -1)
        session.identities = [(IP, address), *proved]
        self._count(session, 1)
        self.digest_sum += session.refresh()

    def add_identities(self, session: Session, proved: list[Identity]) -> bool:
        """Add the identities that the client has proved. At the limit return False and add none."""
        fresh = [identity for identity in proved if identity not in session.identities]
        if len(session.identities) + len(fresh) > IDENTITIES_MAX:
            return False
        if fresh:
            session.identities = [*session.identities, *fresh]
            self.digest_sum += session.refresh()
        return True

    def remove(self, session: Session) -> None:
        """Remove a session that has ended."""
        assert self.sessions.get(session.session_id) is session, f"session {session.session_id:#x} does not exist"
        del self.sessions[session.session_id]
        self._count(session, -1)
        self._last = None
        self.digest_sum -= session.digest_part

    def validate(self, last_zxid: int) -> None:
        """Raise AssertionError if the table contradicts itself or has a zxid above `last_zxid`. For tests."""
        total = 0
        for session_id, session in self.sessions.items():
            name = f"session {session_id:#x}"
            assert session.session_id == session_id, f"{name} is in the table as {session.session_id:#x}"
            assert session.digest_part == session.checksum(), f"the digest of {name} is out of date"
            assert 0 < session.owner <= last_zxid, f"{name} has owner {session.owner}, the last zxid is {last_zxid}"
            assert session.timeout_ms > 0, f"{name} has a timeout of {session.timeout_ms} ms"
            total += session.digest_part
        assert self.digest_sum == total, f"the digest is {self.digest_sum:#x}, the sessions add up to {total:#x}"
        counts: dict[bytes, int] = {}
        for session in self.sessions.values():
            for _, address in session.identities[:1]:
                counts[address] = counts.get(address, 0) + 1
        assert self._per_address == counts, f"sessions by address are {self._per_address}, there are {counts}"
        last = self._last
        assert last is None or self.sessions.get(last.session_id) is last, "the session found last has ended"


def passwords_match(ours: bytes, theirs: bytes) -> bool:
    """Return True if both are equal. The time taken does not reveal how many bytes of `theirs` are right."""
    return hmac.compare_digest(ours, theirs)


class ExpiryQueue:
    """Sessions by the tick in which their timeout ends. Used by the leader; pure.

    A session is due in the first tick that ends at least its timeout after its last message: never early, and late by
    less than `tick_ms` plus the interval between calls. All times are monotonic milliseconds of the caller.

    Invariant: each session in `_due` is in the bucket of its tick and in no other; no bucket is empty or in the past.
    """

    def __init__(self, table: SessionTable, tick_ms: int, now_ms: int) -> None:
        assert tick_ms > 0, tick_ms
        self._table = table
        self._tick_ms: int = tick_ms
        #: Session id -> the tick at whose end it is due.
        self._due: dict[int, int] = {}
        self._buckets: dict[int, dict[int, None]] = {}
        self._next_tick: int = now_ms // tick_ms
        for session_id in table.sessions:
            self.touch(session_id, now_ms)

    def touch(self, session_id: int, now_ms: int) -> None:
        """Restart the timeout of a session that is new or attached, or whose client has sent something at `now_ms`."""
        session = self._table.sessions.get(session_id)
        if session is not None:
            self._put(session_id, (now_ms + session.timeout_ms) // self._tick_ms)

    def _put(self, session_id: int, tick: int) -> None:
        if tick < self._next_tick:
            tick = self._next_tick
        before = self._due.get(session_id, -1)
        if before == tick:
            return
        if before >= 0:
            self._take(session_id, before)
        self._due[session_id] = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
        bucket[session_id] = None

    def _take(self, session_id: int, tick: int) -> None:
        bucket = self._buckets[tick]
        assert session_id in bucket, f"session {session_id:#x} is not due in tick {tick}"
        del bucket[session_id]
        if not bucket:
            del self._buckets[tick]

    def expired(self, now_ms: int) -> list[tuple[int, int]]:
        """Return (session id, owner) of the sessions that are due, in the order of their ticks.

        A session that still exists a timeout later is returned again, because the EXPIRE command may have been lost.
        Sessions that have ended are dropped.
        """
        current = now_ms // self._tick_ms
        due: list[tuple[int, int]] = []
        if current - self._next_tick > len(self._buckets):
            ticks = sorted([tick for tick in self._buckets if tick < current])
        else:
            ticks = [tick for tick in range(self._next_tick, current) if tick in self._buckets]
        self._next_tick = max(self._next_tick, current)
        for tick in ticks:
            for session_id in self._buckets.pop(tick):
                del self._due[session_id]
                session = self._table.sessions.get(session_id)
                if session is not None:
                    due.append((session_id, session.owner))
                    self.touch(session_id, now_ms)
        return due
