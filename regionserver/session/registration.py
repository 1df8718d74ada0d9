"""A server's membership: its registration in the store, and the lease that goes with it.

    /servers/<uuid>    ephemeral, a ServerRecord with the start code of this incarnation

One `Registration` is one session and one incarnation. It ends when the session has expired, or when the registration is
gone although the session lives (an operator or a master has fenced this server by deleting it). In both cases the
masters have given, or are giving, the regions away.

Joining. A leftover registration of our own former start is replaced at once, in one step, instead of waiting for its
session to time out: the lock on our data directory proves that start dead, on the machine that it names. One of another
host has our uuid by mistake (a copied data directory) or by a move; nobody can tell from here, so its session must end
by itself. The fencing epoch is read before the first command can come, so that an old master's late command is refused
even by a server that has just started (FN-05 without the majority: the store has the epoch).

Before anything is written the cluster's id is read and shown to `adopt`, which refuses another cluster than the one
that this server belongs to. A server that belongs to a cluster does not create one: where there is none (a store that
was given by mistake, or one whose first master is still to come) it waits.
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

#: Pause before joining is tried again after the connection broke.
AGAIN_S: Final = 0.1
#: How often a wait for another holder of our uuid looks, and how often it says so.
LOOK_S: Final = 0.5
LOOKS_PER_LINE: Final = 10


class Registration:
    """One incarnation's session, registration and lease.

    `changed` is called whenever the lease begins or ends. `over` fires, once, with the reason.
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
    ) -> None:
        """`now_s` is the lease's clock: monotonic, and running while the machine sleeps.

        `adopt` is called with the cluster's id as soon as there is one, and raises ConfigError if it is another
        cluster's; `belongs`: this server has a cluster. `admission` compares the shared directory with the store's
        record of it before anything is registered.
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
        self._cluster_id = ""
        self._record: ServerRecord | None = None
        self._held = False
        #: Our registration may be gone: nothing renews the lease until a look has shown that it is not.
        self._in_doubt = False
        self._is_over = False
        self._timers: dict[str, IDelayedCall] = {}
        self._stop_listening = client.on_state(self._state_changed)

    @property
    def is_over(self) -> bool:
        """True once it has ended, for whatever reason."""
        return self._is_over

    async def join(self, record: ServerRecord) -> None:
        """Register, and return when the registration is in the store. Retry over broken connections.

        Raises:
            OperationError: the store refuses (no access, say).
            ConfigError: this is another cluster than ours, or another shared directory; nothing was registered.
            ConnectionLoss: the membership is over before it began.
        """
        self._record = record
        self._lease.begin(self.client.timeout_ms)
        self._renew()
        while not self._is_over:
            try:
                await self._join(record)
            except RetryableError:
                await deferLater(self._reactor, AGAIN_S)
            else:
                self.is_joined = True
                return
        raise ConnectionLoss("", "the session ended while joining")

    async def announce(self, record: ServerRecord) -> None:
        """Change the registration, and write it again if another client overwrites it.

        Raises OperationError if it is not written.
        """
        self._record = record
        await self.client.set(self._paths.server(record.uuid), znodes.encode(record))

    def end(self, reason: str) -> None:
        """Stop renewing and watching. The caller closes the client that it has made."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_listening()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        self._lease.end()
        self._look_at_lease()
        self.over.callback(reason)

    # --- registration ---

    async def _join(self, record: ServerRecord) -> None:
        client, path = self.client, self._paths.server(record.uuid)
        is_known = await self._find_cluster()
        for parent in _ancestors(self._paths.servers):
            try:
                await client.create(parent)
            except NodeExists:
                continue
        if self._admission is not None and not self._is_over:
            await self._admission.prove(client, self._cluster_id)
        self.epoch = max(self.epoch, await self.read_epoch())
        former = await self._clear(path, record)
        registration = Create(path, znodes.encode(record), ephemeral=True)
        try:
            if former is None:
                await client.create(path, registration.data, ephemeral=True)
            else:
                # In one step: a master must not see this server gone between its two starts and give its regions away.
                log.info("replacing the registration of this server's former start")
                await client.multi([Delete(path, former.version), registration])
        except MultiFailed as refusal:
            if isinstance(refusal.error, NoNode | BadVersion | NodeExists):
                raise ConnectionLoss(path, f"the former registration changed meanwhile: {refusal}") from refusal
            raise refusal.error from refusal
        except NodeExists:
            data, stat = await client.get(path)
            # Ours after all: the answer to an earlier attempt was lost.
            if stat.ephemeral_owner != client.session_id or data != znodes.encode(record):
                raise
        if await client.exists(path, self._registration_event) is None:
            self.end("the registration was deleted")
        if not is_known:
            await self._await_cluster()

    # --- which cluster ---

    async def _find_cluster(self) -> bool:
        """Read the cluster's id; False where there is none yet, and we belong to none."""
        looks = 0
        while not self._is_over:
            if await self._read_cluster():
                return True
            if not self._belongs:
                return False
            if looks % LOOKS_PER_LINE == 0:
                log.warn(
                    "there is no cluster (that can be read) below {root} of this store, and this server belongs to one;"
                    " waiting for it",
                    root=self._paths.root or "/",
                )
            looks += 1
            await deferLater(self._reactor, LOOK_S)
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
        """The first master is still to come: its cluster will be ours."""
        if await self.client.exists(self._paths.cluster, self._cluster_event) is not None:
            await self._read_cluster()

    def _cluster_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002
        if not self._is_over:
            ensureDeferred(self._await_cluster()).addErrback(self._cluster_unread)

    def _cluster_unread(self, failure: Failure) -> None:
        """Without a connection: a little later. What cannot be mended ends the membership, and the next one says so."""
        if isinstance(failure.value, ConfigError):
            self.end(failure.getErrorMessage())
            return
        failure.trap(OperationError)  # type: ignore[no-untyped-call]
        if not self._is_over:
            self._timers["cluster"] = self._reactor.callLater(AGAIN_S, self._cluster_event, 0, "", 0)

    async def read_table(self, table_id: str) -> bytes:
        """Return the value of a table's record. Raises NoNode, OperationError."""
        data, _ = await self.client.get(self._paths.table(table_id))
        return data

    async def read_epoch(self) -> int:
        """Return the fencing epoch as of now; -1 before there was a master. Raises OperationError."""
        # Both leave at once: the store handles them in order.
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
        """Come back when no other session's registration stands in the way; with the Stat of our former start's."""
        looks = 0
        while not self._is_over:
            try:
                data, stat = await self.client.get(path)
            except NoNode:
                return None
            if stat.ephemeral_owner == self.client.session_id:
                return None
            if _is_former_start(data, path, stat, record):
                return stat
            if looks % LOOKS_PER_LINE == 0:
                log.warn(
                    "another server is registered under our uuid {uuid}; waiting for its session to end: {data}",
                    uuid=record.uuid,
                    data=data.decode("utf-8", "replace"),
                )
            looks += 1
            await deferLater(self._reactor, LOOK_S)
        return None

    def _registration_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002
        """Our znode changed, or the watch is void: look, and watch again."""
        if self._is_over:
            return
        self._in_doubt = True
        looking = ensureDeferred(self._look(path))
        looking.addCallbacks(self._looked, self._not_looked, errbackArgs=(path,))

    async def _look(self, path: str) -> Stat | None:
        """Our registration's Stat. Should somebody have written over it we write it again: a master that takes over
        would count us as dead, and open elsewhere what we serve."""
        stat = await self.client.exists(path, self._registration_event)
        if stat is not None and stat.ephemeral_owner == self.client.session_id and self._record is not None:
            data, _ = await self.client.get(path)
            try:
                znodes.decode_server(data, path)
            except CorruptZnode as error:
                log.error("writing this server's registration again: {error}", error=error)
                await self.client.set(path, znodes.encode(self._record), stat.version)
        return stat

    def _looked(self, stat: Stat | None) -> None:
        if stat is None or stat.ephemeral_owner != self.client.session_id:
            self.end("the registration was deleted: this server has been fenced")
        self._in_doubt = False

    def _not_looked(self, failure: Any, path: str) -> None:
        failure.trap(OperationError)
        if not self._is_over:
            self._timers["look"] = self._reactor.callLater(AGAIN_S, self._registration_event, 0, path, 0)

    # --- lease ---

    def _renew(self) -> None:
        """Ask the store's leader for a sign of life; the lease counts from now if it comes."""
        sent_at_s = self._now_s()

        def answered(_result: object) -> None:
            if not self._is_over and not self._in_doubt:
                self._lease.renew(sent_at_s)
                self._look_at_lease()

        asking = self.client.sync(self._paths.servers)
        asking.addCallbacks(answered, lambda failure: failure.trap(OperationError))
        self._timers["renew"] = self._reactor.callLater(self._lease.renewal_interval_s, self._renew)

    def _look_at_lease(self) -> None:
        """Tell of a change, and be back when the lease ends unless it is renewed."""
        now_s = self._now_s()
        held = self._lease.holds(now_s)
        if held != self._held:
            self._held = held
            self._changed(held)
        timer = self._timers.pop("lease", None)
        if timer is not None and timer.active():
            timer.cancel()
        if held:
            self._timers["lease"] = self._reactor.callLater(self._lease.left_s(now_s), self._look_at_lease)

    # --- session ---

    def _state_changed(self, state: SessionState) -> None:
        if state in (SessionState.EXPIRED, SessionState.AUTH_FAILED, SessionState.CLOSED):
            self.end(f"the session is over ({state.value})")
        elif state is SessionState.SUSPENDED:
            log.warn("lost the connection to the store; the lease ends in {left:.1f} s",
                     left=self._lease.left_s(self._now_s()))  # fmt: skip
        elif state is SessionState.CONNECTED:
            log.info("reconnected to the store")


def _is_former_start(data: bytes, path: str, stat: Stat, record: ServerRecord) -> bool:
    """Return whether a registration is that of an earlier start of this server on this machine."""
    if stat.ephemeral_owner == 0:
        return True  # not even an ephemeral: nobody's sign of life
    try:
        former = znodes.decode_server(data, path)
    except CorruptZnode:
        return False
    return former.host == record.host and former.start_code < record.start_code


def _ancestors(path: str) -> list[str]:
    """`/a/b` as `/a`, `/a/b`."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
