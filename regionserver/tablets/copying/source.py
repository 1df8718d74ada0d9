"""The source of copies: connections of other servers, each served by a thread of its own.

The reactor's thread only begins and ends sessions, and reads the group's configuration. Rows come from a read
transaction of LMDB, entries from the log's files; neither stops writes. See wire.py for the frames.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from twisted.logger import Logger

from coord.errors import CoordError, RemoteProtocolError
from coord.security.revocation import watch
from coord.storage.shared.log import SharedLog
from regionserver.tablets.copying import wire
from regionserver.tablets.copying.merge import SourceMeta
from regionserver.tablets.copying.reactor_calls import ReactorCalls
from regionserver.tablets.copying.sessions import CopySession, CopySessions, Pace
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.links.channel import Channel, ChannelLost
from regionserver.tablets.links.own_server import CopyConnection
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.rows.hot_copy import copied_bytes, hot_copy
from regionserver.tablets.rows.tablet_rows import TabletRows

log = Logger()

#: Limit of connections without a session, so that a foreign process cannot take a thread each.
CONNECTIONS_MAX: Final = 16


class CopyRefusal(Exception):  # noqa: N818 - an answer, not a fault
    """Raised for a request that the source does not serve."""

    def __init__(self, reason: str, *, may_wait: bool = False) -> None:
        super().__init__(reason)
        self.may_wait = may_wait


class CopySources:
    """All sessions of this server. Methods without a note run on the reactor's thread."""

    def __init__(
        self,
        calls: ReactorCalls,
        turn: Turn,
        replicas: dict[str, TabletReplica],
        shared: SharedLog,
        rate_bytes: int,
    ) -> None:
        self.sessions = CopySessions()
        self._calls = calls
        self._turn = turn
        self._replicas = replicas
        self._shared = shared
        self._pace = Pace(rate_bytes)
        self._pacing = threading.Lock()
        self._channels: dict[Channel, CopySession | None] = {}
        watch(self)

    def revocations_changed(self) -> None:
        """End the copies to servers whose certificates are revoked, or that lack the proof that is required now."""
        for channel in self._channels:
            channel.end_if_revoked()

    def serve(self, connection: CopyConnection) -> None:
        """Serve a connection that another server has dialed."""
        channel = Channel(connection.sock, connection.tls, f"server {connection.server}")
        channel.unproven = connection.unproven
        if len(self._channels) >= CONNECTIONS_MAX:
            channel.close()
            return
        self._channels[channel] = None
        thread = _SourceThread(self, channel, connection.server)

        def ended(result: Exception | None) -> None:
            session = self._channels.pop(channel, None)
            channel.close()
            if session is not None:
                why = session.ended or ("" if result is None else str(result))
                self.end(session, why or "done")
                log.info(
                    "copy of tablet {tablet} to member {number} on server {server} ended: {why}",
                    tablet=session.tablet, number=session.number, server=session.server, why=session.ended,
                )  # fmt: skip
            elif isinstance(result, Exception) and not isinstance(result, (CoordError, OSError, CopyRefusal)):
                log.error("a copy's connection failed: {why}", why=repr(result))

        self._calls.spawn("copy-out", lambda: thread.run(connection.answer), ended)

    def begin(
        self, channel: Channel, server: str, asked: wire.BeginCopy
    ) -> tuple[CopySession, TabletRows, wire.CopyBegun]:
        """Begin a session. Raise CopyRefusal."""
        replica, group, rows = self._running(asked.tablet)
        if replica.number != asked.source:
            raise CopyRefusal(f"member {asked.source} of tablet {asked.tablet} is not on this server")
        if group.servers.get(asked.number, server) != server:
            raise CopyRefusal(f"member {asked.number} of tablet {asked.tablet} is on another server")
        # Rows that are copied now hold at least the entries of the last steady point.
        session = self.sessions.begin(asked.tablet, asked.number, server, rows.point[0])
        if session is None:
            raise CopyRefusal("the source serves as many copies as it may", may_wait=True)
        self._channels[channel] = session
        self._pin(asked.tablet)
        meta = meta_at(group, group.applied_index)
        block = replica.block
        begun = wire.CopyBegun(
            *meta, copied_bytes(rows), block.table, block.start_key, block.end_key, block.hash_buckets
        )
        return session, rows, begun

    def log_begins(self, session: CopySession, index: int) -> tuple[int, wire.LogBegins]:
        """Return the slot of the log, and the configuration at the entry where the copied rows end. Raise
        CopyRefusal."""
        self._check(session)
        replica, group, _ = self._running(session.tablet)
        session.pin = max(session.pin, index)
        self._pin(session.tablet)
        return replica.slot, wire.LogBegins(*meta_at(group, index))

    def last(self, session: CopySession) -> tuple[int, int]:
        """Return index and term of the last durable entry. Raise CopyRefusal."""
        self._check(session)
        replica, _, _ = self._running(session.tablet)
        contents = self._shared.contents(replica.slot)
        if contents is None:
            raise CopyRefusal(f"tablet {session.tablet} has no log on the source any more")
        return contents.last.index, contents.last.term

    def end(self, session: CopySession, why: str) -> None:
        """End a session, and let its log go."""
        self.sessions.end(session, why)
        self._pin(session.tablet)

    def stop(self) -> None:
        """End all sessions: the server stops."""
        for channel, session in list(self._channels.items()):
            if session is not None:
                self.end(session, "the source stops")
            channel.abort()

    def _check(self, session: CopySession) -> None:
        if session.ended:
            raise CopyRefusal(session.ended)

    def _running(self, tablet: str) -> tuple[TabletReplica, Group, TabletRows]:
        replica, group = self._replicas.get(tablet), self._turn.groups.get(tablet)
        if replica is None:
            raise CopyRefusal(f"tablet {tablet} is not on the source")
        if group is None or group.failure or replica.rows is None or replica.run is not RunState.RUNNING:
            raise CopyRefusal(f"tablet {tablet} is {replica.run} on the source")
        return replica, group, replica.rows

    def _pin(self, tablet: str) -> None:
        replica = self._replicas.get(tablet)
        if replica is not None:
            replica.pin = self.sessions.pin_of(tablet)

    # --- any thread ---

    def pause_s(self, size: int, now_s: float) -> float:
        """Return how long to wait before `size` bytes are sent. All threads share the rate."""
        with self._pacing:
            return self._pace.pause_s(size, now_s)


class _SourceThread:
    """One connection, on its thread."""

    def __init__(self, sources: CopySources, channel: Channel, server: str) -> None:
        self._sources = sources
        self._calls: ReactorCalls = sources._calls
        self._shared = sources._shared
        self._channel = channel
        self._server = server
        self._session: CopySession | None = None
        self._rows: TabletRows | None = None

    def run(self, answer: bytes) -> None:
        """Answer the hello, then requests until the copy is complete. Raise ChannelLost, RemoteProtocolError."""
        self._channel.established()
        self._channel.send(answer[4], answer[5:])
        while True:
            kind, body = self._channel.receive()
            if kind != wire.ASK:
                raise RemoteProtocolError(f"a frame of kind {kind} instead of a request")
            asked = wire.decode_ask(body)
            if isinstance(asked, wire.EndCopy):
                return
            try:
                self._serve(asked)
            except (CopyRefusal, CoordError, OSError) as error:
                if isinstance(error, ChannelLost):
                    raise
                may_wait = isinstance(error, CopyRefusal) and error.may_wait
                self._answer(wire.CopyRefused(str(error), may_wait))

    def _serve(self, asked: wire.Ask) -> None:
        if isinstance(asked, wire.BeginCopy):
            self._begin(asked)
        elif self._session is None or self._rows is None:
            raise CopyRefusal("no copy has begun")
        elif isinstance(asked, wire.FetchRows):
            self._send_rows(self._session, self._rows)
        elif isinstance(asked, wire.FetchLog):
            self._send_log(self._session, asked)

    def _begin(self, asked: wire.BeginCopy) -> None:
        session, self._rows, begun = self._calls.call(lambda: self._sources.begin(self._channel, self._server, asked))
        self._session = session
        self._answer(begun)

    def _send_rows(self, session: CopySession, rows: TabletRows) -> None:
        size = 0
        for chunk in hot_copy(rows, wire.CHUNK_BYTES):
            self._send_chunk(session, chunk)
            size += len(chunk)
        self._answer(wire.RowsSent(size, rows.identity.generation))

    def _send_log(self, session: CopySession, asked: wire.FetchLog) -> None:
        (slot, begins), (until, until_term) = self._calls.call(
            lambda: (self._sources.log_begins(session, asked.index), self._sources.last(session))
        )
        at, at_term = asked.index, asked.term
        is_first = True
        while at < until or is_first:
            if at < until:
                before, items = self._shared.entries_from(slot, at + 1, wire.LOG_CHUNK_BYTES)
                if before is None or (before.index, before.term) != (at, at_term):
                    raise CopyRefusal(f"the source's log does not follow entry {at} of term {at_term} any more")
            else:
                items = []
                if (until, until_term) != (at, at_term):
                    raise CopyRefusal(f"the source's log ends at entry {until}, before the rows' entry {at}")
            if is_first:
                self._answer(begins)
                is_first = False
            if items:
                self._send_chunk(session, memoryview(wire.encode_entries(items)))
                at, at_term = items[-1].index, items[-1].term
        self._answer(wire.LogSent(at, at_term))

    def _send_chunk(self, session: CopySession, data: memoryview) -> None:
        if session.ended:
            raise CopyRefusal(session.ended)
        pause_s = self._sources.pause_s(len(data), time.monotonic())
        if pause_s:
            time.sleep(pause_s)
        self._channel.send(wire.CHUNK, wire.seal_of(data), data)
        session.sent += len(data)

    def _answer(self, answer: wire.Answer) -> None:
        self._channel.send(wire.ANSWER, wire.encode(answer))


def meta_at(group: Group, index: int) -> SourceMeta:
    """Return a running replica's term, and its configuration at an entry. Raise CopyRefusal if the replica does not
    know the configuration any more."""
    core = group.core
    configs = core.configs
    if index < configs.indexes[0]:
        raise CopyRefusal(f"the source does not know the members at entry {index} any more")
    place = max(at for at, first in enumerate(configs.indexes) if first <= index)
    return SourceMeta(core.term, *configs.ids[place], configs.configs[place].encode())
