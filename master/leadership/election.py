"""Who is active: the race for `/active`, and the fencing epoch that the winner raises.

Every live master has its ephemeral below `/masters`. The active one holds the ephemeral `/active`; the others watch
it and race for it when it goes. The winner then writes `/epoch` by compare-and-set: from that write on, every write
of any former master is refused, and only after it does the winner read anything that it will act on. Holding
`/active` alone proves nothing (a session may have ended without its owner knowing); the epoch does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Check, SetData, WriteOp
from coord.client.session import ZkClient
from coord.errors import BadVersion, MultiFailed, NodeExists, NoNode
from master.leadership.active_probe import ActiveProbe
from master.leadership.identity import MasterIdentity
from master.settings import MasterSettings
from regions.records.formats import KNOWN
from regions.records.model import ActiveRecord, EpochRecord, MasterRecord
from regions.records.znodes import CorruptZnode, Layout, decode_active, decode_master, encode

log = Logger()


class Election:
    """One master's part in it, for one session."""

    def __init__(
        self, reactor: Any, client: ZkClient, layout: Layout, settings: MasterSettings, identity: MasterIdentity
    ) -> None:
        self._reactor = reactor
        self._client = client
        self._layout = layout
        self._settings = settings
        self._identity = identity
        #: The active master as last read, for those who ask a standby; None: there was none.
        self.active: ActiveRecord | None = None
        self._released: Deferred[None] | None = None

    async def register(self) -> None:
        """Create `/masters/<uuid>`, in place of one that an earlier start or session of ours left behind."""
        path = self._layout.master(self._identity.uuid)
        while True:
            stat = await self._client.exists(path)
            if stat is not None and stat.ephemeral_owner == self._client.session_id:
                return
            try:
                if stat is not None:
                    # The lock on our data directory proves that nobody else uses this uuid now.
                    await self._client.delete(path, stat.version)
                await self._client.create(path, encode(self._registration()), ephemeral=True)
            except (NodeExists, NoNode, BadVersion):
                continue
            return

    async def restore_registration(self) -> None:
        """Write `/masters/<uuid>` again if somebody has written over it: there servers and commands find us."""
        path = self._layout.master(self._identity.uuid)
        with contextlib.suppress(NoNode, BadVersion):
            data, stat = await self._client.get(path)
            try:
                decode_master(data, path)
            except CorruptZnode as error:
                if stat.ephemeral_owner == self._client.session_id:
                    log.error("our mark is written again: {error}", error=error)
                    await self._client.set(path, encode(self._registration()), stat.version)

    def _registration(self) -> MasterRecord:
        own, settings = self._identity, self._settings
        return MasterRecord(own.uuid, settings.host, settings.port, own.start_code, settings.admin_port, KNOWN)

    async def win(self, now_ms: Callable[[], int], racing: Callable[[], None]) -> int:
        """Wait until this master is the active one; returns its fencing epoch. `racing()` is called at each attempt.

        Raises OperationError when the session or connection goes meanwhile.
        """
        while True:
            racing()
            await self._wait_for_active(racing)
            epoch = await self._raise_epoch(now_ms())
            if epoch is not None:
                return epoch
            log.info("{path} was lost before the epoch was ours: racing again", path=self._layout.active)

    async def _wait_for_active(self, racing: Callable[[], None]) -> None:
        """Until `/active` is ours."""
        while not await self._take_active():
            released: Deferred[None] = Deferred()
            self._released = released
            if await self._client.exists(self._layout.active, watch=self._active_changed) is not None:
                await self._read_active()
                active_probe = self._start_probe(self.active)
                try:
                    await released
                finally:
                    if active_probe is not None:
                        active_probe.close()
                racing()

    async def release(self) -> None:
        """Give `/active` up if it is ours, so that another master need not wait for our session to end."""
        stat = await self._client.exists(self._layout.active)
        if stat is not None and stat.ephemeral_owner == self._client.session_id:
            await self._client.delete(self._layout.active, stat.version)

    def _start_probe(self, active: ActiveRecord | None) -> ActiveProbe | None:
        """Look after the active master's process, to take its place as soon as it is dead."""
        if active is None:
            return None

        def kept(failure: Failure) -> None:
            log.info("the place of {active} is not cleared: {why}", active=active.uuid, why=failure.value)

        def gone() -> None:
            ensureDeferred(self._delete_active_of(active)).addErrback(kept)

        active_probe = ActiveProbe(self._reactor, active.host, active.port, gone)
        active_probe.start()
        return active_probe

    async def _delete_active_of(self, dead: ActiveRecord) -> None:
        """Delete `/active` if that start of a master still holds it: nobody listens at its address any more."""
        path = self._layout.active
        data, stat = await self._client.get(path)
        if (found := decode_active(data, path)).uuid != dead.uuid or found.start_code != dead.start_code:
            return
        log.info("nobody listens at {host}:{port} any more: its place is free", host=dead.host, port=dead.port)
        await self._delete_leftover(path, stat.version)

    def _active_changed(self, *_event: Any) -> None:
        released, self._released = self._released, None
        if released is not None:
            released.callback(None)

    async def _take_active(self) -> bool:
        """Whether `/active` is ours now."""
        own = self._identity
        path = self._layout.active
        record = ActiveRecord(own.uuid, self._settings.host, self._settings.port, own.start_code)
        try:
            await self._client.create(path, encode(record), ephemeral=True)
        except NodeExists:
            stat = await self._client.exists(path)
            if stat is not None and stat.ephemeral_owner == self._client.session_id:
                return True
            await self._read_active()
            if stat is not None and self.active is not None and self.active.uuid == own.uuid:
                # An earlier start of ours, or an earlier session: dead, as the lock on the directory proves.
                await self._delete_leftover(path, stat.version)
                return await self._take_active()
            return False
        return True

    async def _delete_leftover(self, path: str, version: int) -> None:
        try:
            await self._client.delete(path, version)
        except (NoNode, BadVersion):
            log.info("{path} changed hands meanwhile", path=path)

    async def _read_active(self) -> None:
        try:
            data, _ = await self._client.get(self._layout.active)
            self.active = decode_active(data, self._layout.active)
        except NoNode:
            self.active = None
        except CorruptZnode as error:
            log.error("{error}", error=error)
            self.active = None

    async def _holds_active(self) -> bool:
        stat = await self._client.exists(self._layout.active)
        return stat is not None and stat.ephemeral_owner == self._client.session_id

    async def _raise_epoch(self, now_ms: int) -> int | None:
        """Compare-and-set on `/epoch`; its new version is our epoch, which then also stands in `/active`.

        None if `/active` is not ours any more: somebody has deleted it. The epoch is read before that is looked at, so
        whoever took it since and has an epoch makes our write fail.
        """
        own = self._identity
        record = encode(EpochRecord(own.uuid, own.start_code, now_ms))
        while True:
            _, stat = await self._client.get(self._layout.epoch)
            if not await self._holds_active():
                return None
            try:
                epoch = (await self._client.set(self._layout.epoch, record, stat.version)).version
                break
            except BadVersion:
                continue  # a former active master was still writing its own; ours must come after it
        active = ActiveRecord(own.uuid, self._settings.host, self._settings.port, own.start_code)
        self.active = msgspec.structs.replace(active, epoch=epoch, admin_port=self._settings.admin_port)
        publish: list[WriteOp] = [Check(self._layout.epoch, epoch), SetData(self._layout.active, encode(self.active))]
        try:
            await self._client.multi(publish)
        except MultiFailed:
            return None  # gone, or another's epoch has come: ours is spent
        return epoch
