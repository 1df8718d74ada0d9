"""Sends this server's heartbeats to every master: once per period, and at once if a master lacks something (HB-01,
HB-06).

Masters are the ephemerals below `/masters`. Static addresses get heartbeats as well, so a master that is not registered
in the store, or cannot reach the store, still learns that this server is alive. `regionserver.session.master_link`
decides about the contents of heartbeats; this module has the timers, the connections and the watch.

A sender lives as long as one incarnation. A new start of the server has a new sender.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import EVENT_GAP, ZkClient
from coord.errors import NoNode, OperationError, RetryableError
from coord.rpc.client import RpcClient
from coord.rpc.server import RpcError
from regions.messages import WRONG_CLUSTER, WRONG_MASTER, MasterReach
from regions.messages.heartbeat import HeartbeatReply
from regions.records.znodes import CorruptZnode, Layout, decode_master
from regionserver.replica.effects import Key
from regionserver.session.master_link import HeartbeatState, MasterLink, Role

log = Logger()

Address = tuple[str, int]

#: A heartbeat times out after this many periods, but not before the minimum.
TIMEOUT_PERIODS: Final = 3
TIMEOUT_S_MIN: Final = 3.0
#: Urgent changes are collected for this time before a heartbeat is sent for them.
SOON_S: Final = 0.02
#: Shortest time between two heartbeats for urgent changes. A change of a tablet's members is several changes of its
#: report within some milliseconds, and each report costs the master a decision.
GAP_S: Final = 0.1
#: Loads of replicas are compared this often. A load is reported again if it has changed by more than this part of the
#: reported load and by more than this number of requests per second.
LOADS_EVERY_S: Final = 10.0
LOAD_CHANGE_PART: Final = 0.2
LOAD_CHANGE_MIN: Final = 1.0
#: Pause before the masters are read again after the connection with the store broke.
RETRY_S: Final = 0.5


class HeartbeatSource(Protocol):
    """The region server, as heartbeats read it."""

    def heartbeat_state(self) -> HeartbeatState: ...
    def take_changed(self) -> list[Key]: ...
    def rates(self) -> Mapping[Key, float]: ...
    def learn_epoch(self, epoch: int) -> int: ...
    def heartbeat_ended(self, *, is_answered: bool) -> None: ...


class _Peer:
    """One master: its link state and its connection."""

    def __init__(self, reactor: Any, address: Address, sent: int) -> None:
        self.link = MasterLink(address, sent=sent)
        self.client = RpcClient(reactor, *address)
        #: Time of the last reply by the reactor's clock, or None.
        self.answered_s: float | None = None
        #: The last logged error of this master, so that each is logged once.
        self.last_logged = ""


class HeartbeatSender:
    """One incarnation's heartbeats: `start`, then `stop`."""

    def __init__(
        self,
        reactor: Any,
        client: ZkClient,
        paths: Layout,
        source: HeartbeatSource,
        *,
        period_s: float,
        static: Sequence[Address] = (),
    ) -> None:
        """`static`: addresses of masters that get heartbeats even if they are not registered in the store."""
        self._reactor = reactor
        self._client = client
        self._paths = paths
        self._source = source
        self._period_s = period_s
        self._static = tuple(static)
        self._peers: dict[Address, _Peer] = {}
        #: Last sequence number used towards each master address that is no longer tracked. If a master returns at that
        #: address, numbering continues above it: masters drop sequence numbers that they have already received.
        self._sent: dict[Address, int] = {}
        self._timers: dict[str, IDelayedCall] = {}
        self._reported_loads: dict[Key, float] = {}
        #: Time by the reactor's clock before which no further changes are sent.
        self._next_changes_s = 0.0
        self._is_stopped = False
        self._is_reading = False
        self._read_again = False

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the masters and begin."""
        self._set_masters(())
        self._later("tick", 0, self._tick)
        self._later("loads", LOADS_EVERY_S, self._check_loads)
        watching = self._client.add_watch(self._paths.masters, self._masters_event, recursive=True)
        watching.addCallbacks(lambda _: self._refresh_masters(), self._not_found)

    def stop(self) -> None:
        """End the heartbeats of this incarnation."""
        self._is_stopped = True
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        for peer in self._peers.values():
            peer.client.close()

    def send_soon(self) -> None:
        """Send changes now instead of with the next tick, because a client waits for them. Changes that follow one
        another are sent together."""
        if "soon" not in self._timers or not self._timers["soon"].active():
            self._later("soon", max(SOON_S, self._next_changes_s - self._reactor.seconds()), self._send_changes)

    @property
    def is_up_to_date(self) -> bool:
        """Return True if an active master has acknowledged every change."""
        return any(peer.link.is_up_to_date for peer in self._peers.values())

    def reach(self) -> list[MasterReach]:
        """Return each master with the time since its last answer."""
        now_s = self._reactor.seconds()
        return [
            MasterReach(
                f"{host}:{port}",
                peer.link.uuid,
                peer.link.role.value,
                -1 if peer.answered_s is None else int((now_s - peer.answered_s) * 1000),
                peer.link.problem,
            )
            for (host, port), peer in sorted(self._peers.items())
        ]

    # --- the list of masters ----------------------------------------------------------------------------------------

    def _masters_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - the new list of masters says more than the event
        if event_type != EVENT_GAP and path == self._paths.masters:
            return
        self._refresh_masters()

    def _refresh_masters(self) -> None:
        self._read_again = True
        if not self._is_reading and not self._is_stopped:
            self._is_reading = True
            ensureDeferred(self._read_masters()).addErrback(self._not_found)

    async def _read_masters(self) -> None:
        try:
            while self._read_again and not self._is_stopped:
                self._read_again = False
                found = []
                for name in await self._client.children(self._paths.masters):
                    path = self._paths.master(name)
                    try:
                        data, _ = await self._client.get(path)
                        record = decode_master(data, path)
                    except NoNode:
                        continue
                    except CorruptZnode as error:
                        log.error(
                            "cannot read a master's registration, sending that master no heartbeats: {error}",
                            error=error,
                        )
                        continue
                    found.append((record.host, record.port))
                if not self._is_stopped:
                    self._set_masters(found)
        finally:
            self._is_reading = False

    def _not_found(self, failure: Failure) -> None:
        """Retry after a lost connection. Before the first master `/masters` does not exist; the watch reports it."""
        failure.trap(OperationError)  # type: ignore[no-untyped-call]
        if not self._is_stopped and isinstance(failure.value, RetryableError):
            self._later("look", RETRY_S, self._refresh_masters)

    def _set_masters(self, found: Iterable[Address]) -> None:
        wanted = dict.fromkeys((*self._static, *found))
        for address in [one for one in self._peers if one not in wanted]:
            peer = self._peers.pop(address)
            self._sent[address] = peer.link.sent
            peer.client.close()
        new = [one for one in wanted if one not in self._peers]
        for address in new:
            self._peers[address] = _Peer(self._reactor, address, self._sent.get(address, 0))
        if new:
            self.send_soon()

    # --- sending ----------------------------------------------------------------------------------------------------

    def _later(self, name: str, seconds: float, action: Any) -> None:
        if not self._is_stopped:
            self._timers[name] = self._reactor.callLater(seconds, action)

    def _tick(self) -> None:
        self._later("tick", self._period_s, self._tick)
        self._distribute_changes()
        for peer in list(self._peers.values()):
            self._send(peer)

    def _send_changes(self) -> None:
        """Send a heartbeat to active masters that lack something, and to masters without any reply so far."""
        self._next_changes_s = self._reactor.seconds() + GAP_S
        self._distribute_changes()
        for peer in list(self._peers.values()):
            if peer.link.is_urgent or peer.link.role is Role.UNKNOWN or peer.link.unreported:
                self._send(peer)

    def _distribute_changes(self) -> None:
        changed = self._source.take_changed()
        if changed:
            for peer in self._peers.values():
                peer.link.changed(changed)

    def _send(self, peer: _Peer) -> None:
        state = self._source.heartbeat_state()
        if not state.cluster_id:
            return  # no master has ever worked on this store, so no master could accept the heartbeat
        beat = peer.link.next_heartbeat(state)
        if beat is None:
            return
        timeout_s = max(TIMEOUT_S_MIN, TIMEOUT_PERIODS * self._period_s)
        asked = peer.client.call(beat, timeout_s, expect=HeartbeatReply)
        asked.addCallbacks(self._answered, self._failed, (peer,), {}, (peer,))
        asked.addErrback(lambda failure: log.failure("internal error after a heartbeat", failure=failure))

    def _answered(self, reply: HeartbeatReply, peer: _Peer) -> None:
        if self._is_stopped:
            return
        peer.answered_s = self._reactor.seconds()
        self._source.heartbeat_ended(is_answered=True)
        before = peer.link.role
        peer.link.answered(reply, self._source.learn_epoch(reply.epoch))
        if peer.link.role is Role.LEADER and before is not Role.LEADER:
            log.info("master {address} is active, epoch {epoch}: sending it a full report",
                     address=peer.client.address, epoch=reply.epoch)  # fmt: skip
        peer.last_logged = ""
        if peer.link.is_urgent:
            self._send(peer)

    def _failed(self, failure: Failure, peer: _Peer) -> None:
        failure.trap(RpcError)  # type: ignore[no-untyped-call]
        if self._is_stopped:
            return
        error: Any = failure.value
        self._source.heartbeat_ended(is_answered=False)
        peer.link.failed(str(error), is_other_master=error.code == WRONG_MASTER)
        if error.code == WRONG_CLUSTER and peer.last_logged != error.message:
            peer.last_logged = error.message
            log.error(
                "master {address} belongs to another cluster: {why}", address=peer.client.address, why=error.message
            )

    # --- loads ------------------------------------------------------------------------------------------------------

    def _check_loads(self) -> None:
        """Report the loads that have changed noticeably with the next tick."""
        self._later("loads", LOADS_EVERY_S, self._check_loads)
        moved = changed_loads(self._reported_loads, self._source.rates())
        self._reported_loads.update(moved)
        for key in [key for key, load in moved.items() if not load]:
            del self._reported_loads[key]
        for peer in self._peers.values():
            peer.link.changed(moved)


def changed_loads(reported: Mapping[Key, float], rates: Mapping[Key, float]) -> dict[Key, float]:
    """Return loads that differ noticeably from the reported ones; 0.0 for a replica without requests."""
    found = {}
    for key in {**reported, **rates}:
        before, now = reported.get(key, 0.0), rates.get(key, 0.0)
        if abs(now - before) > max(LOAD_CHANGE_MIN, LOAD_CHANGE_PART * before) or (before and not now):
            found[key] = now
    return found
