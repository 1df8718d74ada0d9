"""Heartbeats of this server to every master: once a period, and at once where a master lacks something (HB-01, HB-06).

Masters are found as the ephemerals below `/masters`; addresses given by hand are tried as well, so a master that the
store cannot show us, or that does not reach the store, is still told that we live. What is sent, and what is owed to
whom, `regionserver.session.master_link` decides; this module has the timer, the connections and the watch.

It lives as long as one incarnation: a new start of the server begins anew with every master.
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
from coord.rpc.server import RpcClient, RpcError
from regions.messages import WRONG_CLUSTER, WRONG_MASTER, MasterReach
from regions.messages.heartbeat import HeartbeatReply
from regions.records.znodes import CorruptZnode, Layout, decode_master
from regionserver.replica.effects import Key
from regionserver.session.master_link import MasterLink, Role, Us

log = Logger()

Address = tuple[str, int]

#: A heartbeat without an answer is given up after so many periods, but not before the shortest time.
TIMEOUT_PERIODS: Final = 3
TIMEOUT_S_MIN: Final = 3.0
#: Changes that somebody waits for are gathered for so long before a heartbeat leaves on their account.
SOON_S: Final = 0.02
#: Loads of replicas are looked at so often, and told again when they have changed by more than this part of the last
#: load told, and by more than so many requests per second.
LOADS_EVERY_S: Final = 10.0
LOAD_CHANGE_PART: Final = 0.2
LOAD_CHANGE_MIN: Final = 1.0
#: Pause before the masters are looked up again after the connection with the store broke.
LOOK_AGAIN_S: Final = 0.5


class HeartbeatSource(Protocol):
    """The region server, as heartbeats read it."""

    def us(self) -> Us: ...
    def take_changed(self) -> list[Key]: ...
    def rates(self) -> Mapping[Key, float]: ...
    def learn_epoch(self, epoch: int) -> int: ...
    def heartbeat_ended(self, *, is_answered: bool) -> None: ...


class _Peer:
    """One master: its link state and its connection."""

    def __init__(self, reactor: Any, address: Address, sent: int) -> None:
        self.link = MasterLink(address, sent=sent)
        self.client = RpcClient(reactor, *address)
        #: When it last answered, by the reactor's clock; None: never.
        self.heard_s: float | None = None
        #: The sentence last logged about it, so that each is logged once.
        self.said = ""


class HeartbeatSender:
    """One incarnation's heartbeats: `start`, then `stop`."""

    def __init__(
        self,
        reactor: Any,
        client: ZkClient,
        paths: Layout,
        host: HeartbeatSource,
        *,
        period_s: float,
        static: Sequence[Address] = (),
    ) -> None:
        """`static`: addresses of masters that get heartbeats even if they are not registered in the store."""
        self._reactor = reactor
        self._client = client
        self._paths = paths
        self._host = host
        self._period_s = period_s
        self._static = tuple(static)
        self._peers: dict[Address, _Peer] = {}
        #: Heartbeats sent to masters that have gone: one that comes back must not hear their numbers again.
        self._sent: dict[Address, int] = {}
        self._timers: dict[str, IDelayedCall] = {}
        self._told_loads: dict[Key, float] = {}
        self._is_stopped = False
        self._is_looking = False
        self._look_again = False

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the masters and begin."""
        self._set_masters(())
        self._later("tick", 0, self._tick)
        self._later("loads", LOADS_EVERY_S, self._look_at_loads)
        watching = self._client.add_watch(self._paths.masters, self._masters_event, recursive=True)
        watching.addCallbacks(lambda _: self._look(), self._not_found)

    def stop(self) -> None:
        """End the heartbeats of this incarnation."""
        self._is_stopped = True
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        for peer in self._peers.values():
            peer.client.close()

    def soon(self) -> None:
        """Send changes now instead of with the next tick, because a client waits for them."""
        if "soon" not in self._timers or not self._timers["soon"].active():
            self._later("soon", SOON_S, self._send_news)

    @property
    def is_told(self) -> bool:
        """Return whether an active master has acknowledged every change."""
        return any(peer.link.is_told for peer in self._peers.values())

    def reach(self) -> list[MasterReach]:
        """Return each master with the time since its last answer."""
        now_s = self._reactor.seconds()
        return [
            MasterReach(
                f"{host}:{port}",
                peer.link.uuid,
                peer.link.role.value,
                -1 if peer.heard_s is None else int((now_s - peer.heard_s) * 1000),
                peer.link.trouble,
            )
            for (host, port), peer in sorted(self._peers.items())
        ]

    # --- who the masters are ----------------------------------------------------------------------------------------

    def _masters_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - the list tells more
        if event_type != EVENT_GAP and path == self._paths.masters:
            return
        self._look()

    def _look(self) -> None:
        self._look_again = True
        if not self._is_looking and not self._is_stopped:
            self._is_looking = True
            ensureDeferred(self._read_masters()).addErrback(self._not_found)

    async def _read_masters(self) -> None:
        try:
            while self._look_again and not self._is_stopped:
                self._look_again = False
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
            self._is_looking = False

    def _not_found(self, failure: Failure) -> None:
        """Before the first master there is no such directory: the watch tells. Without a connection: a little later."""
        failure.trap(OperationError)  # type: ignore[no-untyped-call]
        if not self._is_stopped and isinstance(failure.value, RetryableError):
            self._later("look", LOOK_AGAIN_S, self._look)

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
            self.soon()

    # --- sending ----------------------------------------------------------------------------------------------------

    def _later(self, name: str, seconds: float, action: Any) -> None:
        if not self._is_stopped:
            self._timers[name] = self._reactor.callLater(seconds, action)

    def _tick(self) -> None:
        self._later("tick", self._period_s, self._tick)
        self._spread_news()
        for peer in list(self._peers.values()):
            self._send(peer)

    def _send_news(self) -> None:
        """To whom it concerns: leaders that lack something, and masters that have never been told of us."""
        self._spread_news()
        for peer in list(self._peers.values()):
            if peer.link.is_urgent or peer.link.role is Role.UNKNOWN or peer.link.owed:
                self._send(peer)

    def _spread_news(self) -> None:
        changed = self._host.take_changed()
        if changed:
            for peer in self._peers.values():
                peer.link.changed(changed)

    def _send(self, peer: _Peer) -> None:
        us = self._host.us()
        if not us.cluster_id:
            return  # no master has ever worked on this store: nobody would know who we are
        beat = peer.link.beat(us)
        if beat is None:
            return
        timeout_s = max(TIMEOUT_S_MIN, TIMEOUT_PERIODS * self._period_s)
        asked = peer.client.call(beat, timeout_s, expect=HeartbeatReply)
        asked.addCallbacks(self._answered, self._failed, (peer,), {}, (peer,))
        asked.addErrback(lambda failure: log.failure("a heartbeat's answer", failure=failure))

    def _answered(self, reply: HeartbeatReply, peer: _Peer) -> None:
        if self._is_stopped:
            return
        peer.heard_s = self._reactor.seconds()
        self._host.heartbeat_ended(is_answered=True)
        before = peer.link.role
        peer.link.answered(reply, self._host.learn_epoch(reply.epoch))
        if peer.link.role is Role.LEADER and before is not Role.LEADER:
            log.info("master {address} is active, epoch {epoch}: sending it a full report",
                     address=peer.client.address, epoch=reply.epoch)  # fmt: skip
        peer.said = ""
        if peer.link.is_urgent:
            self._send(peer)

    def _failed(self, failure: Failure, peer: _Peer) -> None:
        failure.trap(RpcError)  # type: ignore[no-untyped-call]
        if self._is_stopped:
            return
        error: Any = failure.value
        self._host.heartbeat_ended(is_answered=False)
        peer.link.failed(str(error), is_stranger=error.code == WRONG_MASTER)
        if error.code == WRONG_CLUSTER and peer.said != error.message:
            peer.said = error.message
            log.error(
                "master {address} belongs to another cluster: {why}", address=peer.client.address, why=error.message
            )

    # --- loads ------------------------------------------------------------------------------------------------------

    def _look_at_loads(self) -> None:
        """Replicas that are asked noticeably more, or less, than was told are told of again, at the next tick."""
        self._later("loads", LOADS_EVERY_S, self._look_at_loads)
        moved = moved_loads(self._told_loads, self._host.rates())
        self._told_loads.update(moved)
        for key in [key for key, load in moved.items() if not load]:
            del self._told_loads[key]
        for peer in self._peers.values():
            peer.link.changed(moved)


def moved_loads(told: Mapping[Key, float], rates: Mapping[Key, float]) -> dict[Key, float]:
    """Return loads that differ noticeably from those reported; 0.0 for a replica without requests."""
    found = {}
    for key in {**told, **rates}:
        before, now = told.get(key, 0.0), rates.get(key, 0.0)
        if abs(now - before) > max(LOAD_CHANGE_MIN, LOAD_CHANGE_PART * before) or (before and not now):
            found[key] = now
    return found
