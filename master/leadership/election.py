"""Election of the active master: the ephemeral `/active`, and the fencing epoch that the winner raises.

Every live master owns an ephemeral znode below `/masters`. The active master owns the ephemeral `/active`. The standbys
watch `/active` and try to create it when it is deleted. The winner then writes `/epoch` by compare-and-set. From that
write on the store refuses every write of former masters, so the winner reads the cluster state only after it.

Owning `/active` alone proves nothing, because a session may expire without its owner noticing. The epoch is the proof.
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
    """One master's part in the election, for one store session."""

    def __init__(
        self, reactor: Any, client: ZkClient, layout: Layout, settings: MasterSettings, identity: MasterIdentity
    ) -> None:
        self._reactor = reactor
        self._client = client
        self._layout = layout
        self._settings = settings
        self._identity = identity
        #: The active master as last read, which is the hint in a standby's replies. None if there was none.
        self.active: ActiveRecord | None = None
        self._released: Deferred[None] | None = None

    async def register(self) -> None:
        """Create `/masters/<uuid>`, replacing the znode of an earlier start or session of this master."""
        path = self._layout.master(self._identity.uuid)
        while True:
            stat = await self._client.exists(path)
            if stat is not None and stat.ephemeral_owner == self._client.session_id:
                return
            try:
                if stat is not None:
                    # The lock on the data directory proves that no other process uses this uuid.
                    await self._client.delete(path, stat.version)
                await self._client.create(path, encode(self._registration()), ephemeral=True)
            except (NodeExists, NoNode, BadVersion):
                continue
            return

    async def restore_registration(self) -> None:
        """Restore `/masters/<uuid>` if its value is damaged: servers and commands find this master by that value."""
        path = self._layout.master(self._identity.uuid)
        with contextlib.suppress(NoNode, BadVersion):
            data, stat = await self._client.get(path)
            try:
                decode_master(data, path)
            except CorruptZnode as error:
                if stat.ephemeral_owner == self._client.session_id:
                    log.error("restoring the registration of this master, its znode was damaged: {error}", error=error)
                    await self._client.set(path, encode(self._registration()), stat.version)

    def _registration(self) -> MasterRecord:
        own, settings = self._identity, self._settings
        return MasterRecord(
            own.uuid,
            settings.host,
            settings.port,
            own.start_code,
            settings.admin_port,
            KNOWN,
            admin_host=settings.registered_admin_host,
        )

    async def win(self, now_ms: Callable[[], int], racing: Callable[[], None]) -> int:
        """Wait until this master is the active one and return its fencing epoch.

        `racing()` is called at each attempt. Raise OperationError when the session or connection is lost.
        """
        while True:
            racing()
            await self._wait_for_active(racing)
            epoch = await self._raise_epoch(now_ms())
            if epoch is not None:
                return epoch
            log.info("lost {path} before the epoch was raised, trying again", path=self._layout.active)

    async def _wait_for_active(self, racing: Callable[[], None]) -> None:
        """Wait until this master owns `/active`."""
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
        """Delete `/active` if this master owns it, so that a standby need not wait for the session to expire."""
        stat = await self._client.exists(self._layout.active)
        if stat is not None and stat.ephemeral_owner == self._client.session_id:
            await self._client.delete(self._layout.active, stat.version)

    def leave(self) -> None:
        """Let another master become active, after an internal error: start `release` in the background."""
        log.info("leaving {path} to another master", path=self._layout.active)

        def failed(failure: Failure) -> None:
            log.info("could not delete {path}: {why}", path=self._layout.active, why=failure.value)

        ensureDeferred(self.release()).addErrback(failed)

    def _start_probe(self, active: ActiveRecord | None) -> ActiveProbe | None:
        """Probe the active master's port. If its process has died, delete `/active` at once."""
        if active is None:
            return None

        def not_deleted(failure: Failure) -> None:
            log.info("could not delete /active of dead master {active}: {why}", active=active.uuid, why=failure.value)

        def gone() -> None:
            ensureDeferred(self._delete_active_of(active)).addErrback(not_deleted)

        active_probe = ActiveProbe(self._reactor, active.host, active.port, gone)
        active_probe.start()
        return active_probe

    async def _delete_active_of(self, dead: ActiveRecord) -> None:
        """Delete `/active` if this start of the dead master still owns it."""
        path = self._layout.active
        data, stat = await self._client.get(path)
        if (found := decode_active(data, path)).uuid != dead.uuid or found.start_code != dead.start_code:
            return
        log.info("active master at {host}:{port} refuses connections: deleting its /active without waiting for its"
                 " session to expire", host=dead.host, port=dead.port)  # fmt: skip
        await self._delete_leftover(path, stat.version)

    def _active_changed(self, *_event: Any) -> None:
        released, self._released = self._released, None
        if released is not None:
            released.callback(None)

    async def _take_active(self) -> bool:
        """Create `/active`. Return True if this master owns it now."""
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
                # The owner is an earlier start or session of this master. The lock on the data directory proves that
                # it is dead.
                await self._delete_leftover(path, stat.version)
                return await self._take_active()
            return False
        return True

    async def _delete_leftover(self, path: str, version: int) -> None:
        try:
            await self._client.delete(path, version)
        except (NoNode, BadVersion):
            log.info("{path} was deleted or taken by another master in the meantime", path=path)

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
        """Raise `/epoch` by compare-and-set, publish the epoch in `/active`, and return it (the version of `/epoch`).

        Return None if this master does not own `/active` any more. The epoch is read before the owner of `/active` is
        checked. So if another master has taken `/active` and raised the epoch since, the compare-and-set fails.
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
                continue  # another master has raised the epoch at the same time; the new epoch must be above it
        active = ActiveRecord(own.uuid, self._settings.host, self._settings.port, own.start_code)
        self.active = msgspec.structs.replace(active, epoch=epoch, admin_port=self._settings.admin_port)
        publish: list[WriteOp] = [Check(self._layout.epoch, epoch), SetData(self._layout.active, encode(self.active))]
        try:
            await self._client.multi(publish)
        except MultiFailed:
            return None  # /active was deleted, or another master has raised the epoch again
        assert epoch > stat.version, f"epoch {epoch} does not follow {stat.version}"
        return epoch
