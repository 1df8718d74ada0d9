"""A server's registration in the store, and its lease.

    /servers/<uuid>    ephemeral, a ServerRecord with the start code of this incarnation

One `Registration` is one session and one incarnation. It ends when the session expires, or when the registration is
deleted while the session lives (an operator or a master fences the server). In both cases the masters reassign the
regions.

Joining: a leftover registration of this server's own former start is replaced at once, in one step, instead of waiting
for its session to expire. The lock on the data directory proves that the former start is dead, on the machine that it
names. A registration from another host with the same uuid is a mistake (a copied data directory) or a move. This server
cannot distinguish the two, so it waits until that session ends. A process whose registration was taken over by another
session does not take the registration back, however the start codes compare: otherwise two processes with a copied data
directory would replace each other without end. The fencing epoch is read before the first command can arrive, so even a
server that has just started rejects a late command of an old master (FN-05 without the majority: the store has the
epoch).

Before anything is written, the cluster's id is read and passed to `adopt`, which rejects another cluster than this
server's. A server that belongs to a cluster does not create one: if the store has no cluster (a wrong store, or a store
whose first master has not started yet), the server waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Create, Delete
from coord.client.session import SessionState, ZkClient
from coord.errors import (
    BadVersion,
    ConfigError,
    ConnectionLoss,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    OperationError,
    RetryableError,
)
from coord.wire.records import Stat
from regions.records import znodes
from regions.records.formats import objection
from regions.records.model import ServerRecord
from regions.records.znodes import CorruptZnode, Layout
from regionserver.session.lease import Lease
from regionserver.shared_directory import Admission

log = Logger()

#: Pause before a registration is retried after the connection broke.
RETRY_S: Final = 0.1
#: Interval of reads while another session holds this uuid, and reads per log line.
POLL_S: Final = 0.5
POLLS_PER_LINE: Final = 10
#: Longest interval of reads while another process has this server's identity.
RIVAL_POLL_S_MAX: Final = 30.0


class Registration:
    """One incarnation's session, registration and lease.

    `changed` is called when the lease begins or ends. `over` fires once, with the reason of the end.
    """

    def __init__(
        self,
        reactor: Any,
        client: ZkClient,
        paths: Layout,
        lease: Lease,
        now_s: Callable[[], float],
        changed: Callable[[bool], None],
        adopt: Callable[[str], None],
        *,
        belongs: bool = False,
        admission: Admission | None = None,
        rivals: set[int] | None = None,
    ) -> None:
        """`now_s` is the lease's clock: monotonic, also while the machine is suspended.

        `rivals`: sessions of other processes that have taken over this server's registration. They are added here, and
        belong to the process, because the next registration must not take it back.

        `adopt` is called with the cluster's id, and raises ConfigError for another cluster. `belongs`: this server
        has a cluster. `admission` compares the shared directory with the store's record before the registration.
        """
        self.client = client
        self.over: Deferred[str] = Deferred()
        self.is_joined = False
        self.epoch = -1
        self._reactor = reactor
        self._paths = paths
        self._lease = lease
        self._now_s = now_s
        self._changed = changed
        self._adopt = adopt
        self._belongs = belongs
        self._admission = admission
        self._rivals = set() if rivals is None else rivals
        self._cluster_id = ""
        self._record: ServerRecord | None = None
        self._held = False
        #: The registration may be gone: the lease is not renewed until a read shows that it still exists.
        self._in_doubt = False
        self._is_over = False
        self._timers: dict[str, IDelayedCall] = {}
        self._stop_listening = client.on_state(self._state_changed)

    @property
    def is_over(self) -> bool:
        """Return True after the end of the registration."""
        return self._is_over

    async def join(self, record: ServerRecord) -> None:
        """Register, and return when the registration is in the store. Retry over broken connections.

        Raises:
            OperationError: the store rejects the registration (for example without access).
            ConfigError: the store holds another cluster, or the shared directory is another one; nothing was
            registered. ConnectionLoss: the registration ended before it was written.
        """
        self._record = record
        self._lease.begin(self.client.timeout_ms)
        self._renew()
        while not self._is_over:
            try:
                await self._join(record)
            except RetryableError:
                await deferLater(self._reactor, RETRY_S)
            else:
                self.is_joined = True
                return
        raise ConnectionLoss("", "the session ended while joining")

    async def announce(self, record: ServerRecord) -> None:
        """Write a changed registration, which is also restored if another client overwrites it.

        Raise OperationError if it is not written.
        """
        self._record = record
        await self.client.set(self._paths.server(record.uuid), znodes.encode(record))

    def end(self, reason: str) -> None:
        """Stop the renewals and the watch. The caller closes the client that it has created."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_listening()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        self._lease.end()
        self._check_lease()
        self.over.callback(reason)

    # --- registration ---

    async def _join(self, record: ServerRecord) -> None:
        client, path = self.client, self._paths.server(record.uuid)
        is_known = await self._find_cluster()
        for parent in _ancestors(self._paths.servers):
            await self._create_parent(parent)
        if self._admission is not None and not self._is_over:
            await self._admission.check(client, self._cluster_id)
        self.epoch = max(self.epoch, await self.read_epoch())
        former = await self._clear(path, record)
        registration = Create(path, znodes.encode(record), ephemeral=True)
        try:
            if former is None:
                await client.create(path, registration.data, ephemeral=True)
            else:
                # In one step: a master must not see a gap between the two starts and reassign the regions.
                log.info("replacing the registration of this server's former start")
                await client.multi([Delete(path, former.version), registration])
        except MultiFailed as refusal:
            if isinstance(refusal.error, NoNode | BadVersion | NodeExists):
                raise ConnectionLoss(path, f"the former registration changed: {refusal}") from refusal
            raise refusal.error from refusal
        except NodeExists:
            data, stat = await client.get(path)
            # The registration is this session's: the reply to an earlier attempt was lost.
            if stat.ephemeral_owner != client.session_id or data != znodes.encode(record):
                raise
        self._check_owner(await client.exists(path, self._registration_event))
        if not is_known:
            await self._await_cluster()

    async def _create_parent(self, path: str) -> None:
        """Create a directory of registrations if it is missing. A server without the masters' credential lacks the
        permission: it waits for the first master, which creates all directories. Raise OperationError."""
        try:
            await self.client.create(path)
        except NodeExists:
            return
        except NoAuth:
            if await self.client.exists(path) is None:
                raise ConnectionLoss(path, "the first master creates it; retry") from None

    # --- which cluster ---

    async def _find_cluster(self) -> bool:
        """Read the cluster's id; return False if there is none and this server belongs to none."""
        polls = 0
        while not self._is_over:
            if await self._read_cluster():
                return True
            if not self._belongs:
                return False
            if polls % POLLS_PER_LINE == 0:
                log.warn(
                    "no readable cluster below {root} of this store, but this server belongs to a cluster; waiting"
                    " for the"
                    " cluster",
                    root=self._paths.root or "/",
                )
            polls += 1
            await deferLater(self._reactor, POLL_S)
        return False

    async def _read_cluster(self) -> bool:
        path = self._paths.cluster
        try:
            data, _ = await self.client.get(path)
        except NoNode:
            return False
        try:
            record = znodes.decode_cluster(data, path)
            why = objection(record.format_version, path)
            if why:
                raise ConfigError(why)
            self._cluster_id = record.cluster_id
            self._adopt(self._cluster_id)
        except CorruptZnode as error:
            log.error(
                "cannot read which cluster this is: {error}; waiting for the active master to repair the record",
                error=error,
            )
            return False
        return True

    async def _await_cluster(self) -> None:
        """Adopt the cluster of the first master, which has not started yet."""
        if await self.client.exists(self._paths.cluster, self._cluster_event) is not None:
            await self._read_cluster()

    def _cluster_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002
        if not self._is_over:
            ensureDeferred(self._await_cluster()).addErrback(self._cluster_unread)

    def _cluster_unread(self, failure: Failure) -> None:
        """Retry after a lost connection. A permanent error ends the registration; the next one reports the error."""
        if isinstance(failure.value, ConfigError):
            self.end(failure.getErrorMessage())
            return
        failure.trap(OperationError)  # type: ignore[no-untyped-call]
        if not self._is_over:
            self._timers["cluster"] = self._reactor.callLater(RETRY_S, self._cluster_event, 0, "", 0)

    async def read_table(self, table_id: str) -> bytes:
        """Return the value of a table's record. Raise NoNode, OperationError."""
        data, _ = await self.client.get(self._paths.table(table_id))
        return data

    async def read_region(self, table_id: str, region_id: str) -> bytes:
        """Return the latest value of a region's record. Raise NoNode, OperationError."""
        path = self._paths.region(table_id, region_id)
        self.client.sync(path).addErrback(lambda _: None)
        data, _ = await self.client.get(path)
        return data

    async def read_epoch(self) -> int:
        """Return the present fencing epoch, or -1 before the first master. Raise OperationError."""
        # Both are sent at once: the store processes them in order.
        synced = self.client.sync(self._paths.epoch)
        found = self.client.get(self._paths.epoch)
        try:
            await synced
        except OperationError:
            found.addErrback(lambda _: None)
            raise
        try:
            _, stat = await found
        except NoNode:
            return -1
        return stat.version

    async def _clear(self, path: str, record: ServerRecord) -> Stat | None:
        """Wait until no other session holds the registration; return the Stat of a former start's registration, or
        None."""
        polls = 0
        pause_s = POLL_S
        while not self._is_over:
            try:
                data, stat = await self.client.get(path)
            except NoNode:
                return None
            if stat.ephemeral_owner == self.client.session_id:
                return None
            if stat.ephemeral_owner in self._rivals:
                log.warn("{advice}; looking again in {pause:.1f} s", advice=_rival(data, path, record), pause=pause_s)
                await deferLater(self._reactor, pause_s)
                pause_s = min(2 * pause_s, RIVAL_POLL_S_MAX)
                continue
            if _is_former_start(data, path, stat, record):
                return stat
            if polls % POLLS_PER_LINE == 0:
                log.warn(
                    "another server is registered with this server's uuid {uuid}; waiting for its session to end:"
                    " {data}",
                    uuid=record.uuid,
                    data=data.decode("utf-8", "replace"),
                )
            polls += 1
            await deferLater(self._reactor, POLL_S)
        return None

    def _registration_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002
        """Read the registration again after an event, and set a new watch."""
        if self._is_over:
            return
        self._in_doubt = True
        reading = ensureDeferred(self._reread(path))
        reading.addCallbacks(self._reread_done, self._reread_failed, errbackArgs=(path,))

    async def _reread(self, path: str) -> Stat | None:
        """Return the Stat of this server's registration. Write the registration again if another client has
        overwritten it.

        A new active master would otherwise count this server as dead and open its regions elsewhere.
        """
        stat = await self.client.exists(path, self._registration_event)
        if stat is not None and stat.ephemeral_owner == self.client.session_id and self._record is not None:
            data, _ = await self.client.get(path)
            try:
                znodes.decode_server(data, path)
            except CorruptZnode as error:
                log.error("this server's registration was overwritten, writing it again: {error}", error=error)
                await self.client.set(path, znodes.encode(self._record), stat.version)
        return stat

    def _reread_done(self, stat: Stat | None) -> None:
        self._check_owner(stat)
        self._in_doubt = False

    def _check_owner(self, stat: Stat | None) -> None:
        """End this registration if it is gone, or belongs to another session by now."""
        if stat is None:
            self.end("the registration was deleted: this server has been fenced")
        elif stat.ephemeral_owner != self.client.session_id:
            self._rivals.add(stat.ephemeral_owner)
            self.end("another process with this server's identity has taken over the registration")

    def _reread_failed(self, failure: Any, path: str) -> None:
        failure.trap(OperationError)
        if not self._is_over:
            self._timers["look"] = self._reactor.callLater(RETRY_S, self._registration_event, 0, path, 0)

    # --- lease ---

    def _renew(self) -> None:
        """Sync with the store's leader. After the reply, the lease counts from the time of this call."""
        sent_at_s = self._now_s()

        def answered(_result: object) -> None:
            if not self._is_over and not self._in_doubt:
                self._lease.renew(sent_at_s)
                self._check_lease()

        asking = self.client.sync(self._paths.servers)
        asking.addCallbacks(answered, lambda failure: failure.trap(OperationError))
        self._timers["renew"] = self._reactor.callLater(self._lease.renewal_interval_s, self._renew)

    def _check_lease(self) -> None:
        """Report a change of the lease, and schedule the next check at its end."""
        now_s = self._now_s()
        held = self._lease.holds(now_s)
        if held != self._held:
            self._held = held
            self._changed(held)
        timer = self._timers.pop("lease", None)
        if timer is not None and timer.active():
            timer.cancel()
        if held:
            self._timers["lease"] = self._reactor.callLater(self._lease.left_s(now_s), self._check_lease)

    # --- session ---

    def _state_changed(self, state: SessionState) -> None:
        if state in (SessionState.EXPIRED, SessionState.AUTH_FAILED, SessionState.CLOSED):
            self.end(f"the session ended ({state.value})")
        elif state is SessionState.SUSPENDED:
            log.warn("lost the connection to the store; the lease ends in {left:.1f} s",
                     left=self._lease.left_s(self._now_s()))  # fmt: skip
        elif state is SessionState.CONNECTED:
            log.info("reconnected to the store")


def _is_former_start(data: bytes, path: str, stat: Stat, record: ServerRecord) -> bool:
    """Return True if the registration belongs to an earlier start of this server on this machine."""
    if stat.ephemeral_owner == 0:
        return True  # the znode is not ephemeral, so it belongs to no session
    try:
        former = znodes.decode_server(data, path)
    except CorruptZnode:
        return False
    return former.host == record.host and former.start_code < record.start_code


def _rival(data: bytes, path: str, record: ServerRecord) -> str:
    """Return what to do about another process with this server's identity."""
    try:
        other = znodes.decode_server(data, path)
        where = f"at {other.host}:{other.port}"
    except CorruptZnode:
        where = "with an unreadable record"
    return (
        f"another process {where} has registered with this server's identity {record.uuid}, so this server"
        f" ({record.host}:{record.port}) serves nothing: its data directory was copied. Stop one of the two processes."
        " To keep both servers, start one of them with an empty data directory"
    )


def _ancestors(path: str) -> list[str]:
    """Return the paths from the root to `path`: `/a/b` as `/a`, `/a/b`."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
