"""One store node as a process: opens the directory and the ports, and assembles, runs and stops the parts."""

from __future__ import annotations

import contextlib
import gc
import resource
import socket
import sys
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from coord import logs
from coord.compiled import form
from coord.daemon import allow_many_files, collect_rarely, stop_on_signals
from coord.env import Disk, read_file, replace_file
from coord.env_os import FolderLock, OsClock, OsDisk, OsEntropy, OsRng, return_memory, share_processors
from coord.errors import ConfigError, CoordError, ForeignDirectory, StorageError
from coord.hosts import is_loopback
from coord.peers.guard import PeerGuard
from coord.peers.reactor import TurnReactor, install
from coord.peers.stream import listening_socket
from coord.raft.core import RaftConfig
from coord.security import process
from coord.server.admin.backup import Backups
from coord.server.admin.four_letter import FourLetterWords
from coord.server.admin.readiness import Readiness
from coord.server.clients.listener import ClientLimits, ClientListener
from coord.server.config.addresses import shown
from coord.server.config.settings import RAFT_TICK_MS, StoreSettings
from coord.server.membership.joining import Joining, renew_memory
from coord.server.membership.removal import Removal
from coord.server.membership.steps import addresses_of
from coord.server.node import Node
from coord.server.node_settings import node_settings
from coord.server.peers.link import PeerLinks
from coord.server.recovery.meta import (
    META,
    META_FORMAT,
    META_FORMAT_WITH_LEVEL,
    MetaError,
    began_with,
    decode_meta,
    encode_meta,
    with_level,
)
from coord.server.recovery.repair import has_forgotten, recover_or_repair
from coord.server.recovery.startup import WAL_FOLDER
from coord.server.revoked import RevokedCredentials
from coord.server.snapshots.job import ForkSnapshotJob
from coord.storage.records import WriteBatch
from coord.storage.writer import InlineWriter, ThreadWriter
from coord.tls.reloading import TlsContexts

log = Logger()

EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 2
#: Ticks between the first elections of nodes that start together.
HASTENED_APART_TICKS: Final = 3
#: Time for which a stopping leader waits until another node leads.
HAND_OVER_S: Final = 1.0
#: Descriptors reserved for the node: peers, unauthenticated connections to the peer port, log, snapshots, admin port.
OWN_DESCRIPTORS: Final = 256
_WITHOUT_META: Final = (
    "If a majority of the nodes runs, move this directory away and start the node: it receives the state from them."
    " If this is the only node, or their last one: rk coord backup DIR FILE, then rk coord restore FILE into a new"
    " directory"
)


def run(settings: StoreSettings) -> int:
    """Run a node until SIGTERM or SIGINT and return the exit status. If the node cannot start, print why on stderr."""
    if not __debug__:
        sys.stderr.write("rk coord: cannot run under python -O: assert statements check invariants\n")
        return EXIT_CONFIG
    allow_many_files()
    reactor = logs.begin(install())
    for warning in settings.warnings:
        log.warn("{warning}", warning=warning)
    service = Service(settings, reactor)
    try:
        service.start()
    except (CoordError, OSError) as error:
        service.abandon()
        sys.stderr.write(f"rk coord: {_one_line(error)}\n")
        return EXIT_CONFIG if isinstance(error, ConfigError | ForeignDirectory) else EXIT_FAILED
    stop_on_signals(reactor)
    reactor.run()
    return service.finish()


class Service:
    """The parts of one node."""

    def __init__(self, settings: StoreSettings, reactor: TurnReactor) -> None:
        self.settings = settings
        self.reactor = reactor
        self.clock = OsClock()
        self.node: Node
        self.links: PeerLinks
        self.clients: ClientListener
        self._guard: PeerGuard
        self._lock: FolderLock | None = None
        self._sockets: list[socket.socket] = []
        self._admin: IListeningPort | None = None
        self._writer: ThreadWriter[WriteBatch] | InlineWriter[WriteBatch]
        self._job: ForkSnapshotJob
        self._status = 0
        self._is_stopping = False
        self._removal: Removal
        self._readiness: Readiness
        self._revoked: RevokedCredentials
        #: True after this process has had a leader or has shortened its first election timeout.
        self._is_led = False
        #: Last index of the log at the start; 0 once that entry is applied.
        self._recovered_to = 0
        self._stopped: Deferred[None] | None = None

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Lock the directory, bind the ports, recover and begin. Raise CoordError or OSError with a one-line
        message."""
        # Set before recovery reads millions of objects.
        collect_rarely()
        settings = self.settings
        disk = self._take_directory()
        self._guard = PeerGuard(
            OsEntropy().token, secret=settings.peer_secret, tls=settings.peer_tls, is_securing=process.is_securing
        )
        listening = self._open_listeners()
        peer_socket = self._bind(settings.peer_address, "peer") if settings.peer_address is not None else None
        trace = None
        if settings.trace is not None:
            from coord.server.admin.trace_file import TraceFile

            trace = TraceFile(settings.trace)
        is_new = META not in disk.names("")
        meta = self._read_meta(disk)
        began = began_with(meta)
        found = recover_or_repair(
            disk,
            settings.node_id,
            began,
            OsRng(),
            segment_bytes=settings.segment_bytes,
            keep_entries=settings.keep_entries,
        )
        is_thread = settings.fsync == "thread"
        self._writer = ThreadWriter(found.wal, self._may_wait_for_disk) if is_thread else InlineWriter(found.wal)
        entropy = OsEntropy()
        self.links = PeerLinks(
            self.reactor,
            node_id=settings.node_id,
            cluster=bytes.fromhex(meta["cluster"]),
            incarnation=int.from_bytes(entropy.token(8), "big"),
            addresses={},
            rng=OsRng(),
            guard=self._guard,
        )
        self._job = ForkSnapshotJob(self.reactor, found.snapshots)
        self._recovered_to = found.core.log.last
        self.node = Node(
            node_settings(settings),
            found.core,
            found.machine,
            writer=self._writer,
            snapshots=found.snapshots,
            snapshot_job=self._job,
            peers=self.links,
            clock=self.clock,
            entropy=entropy,
            joining=Joining(disk, OsRng()),
            applied=found.position,
        )
        if trace is not None:
            trace.begin(found.core, is_new=is_new or has_forgotten(disk))
            self.node.tracer = trace
        membership = self.node.membership
        self._removal = Removal(self.node, membership, self.reactor.callLater, self._left, str(settings.data_dir))
        self.node.levels.on_required = lambda: self._level_required(disk)
        if self.node.levels.required():
            self._mark_level(disk)
        membership.cluster = bytes.fromhex(meta["cluster"])
        self._know_members()
        backups = Backups(self.node, disk, meta["cluster"], self.clock, entropy)
        self._job.written = backups.snapshot_written
        self._job.damaged = self.node.on_failed
        self._readiness = Readiness(self.node, found.wal, self.clock)
        times_s = self._writer.times_s if isinstance(self._writer, ThreadWriter) else ()
        words = FourLetterWords(settings, self.node, times_s)
        self.clients = ClientListener(
            self.reactor,
            self.node.pipeline,
            self.clock,
            _client_limits(settings),
            words.answer,
            may_answer=self.node.liveness.may_answer,
        )
        words.rejected = lambda: self.clients.refused
        self._revoked = RevokedCredentials(self.node, self.clients, self.links)
        self._serve_admin(words, backups)
        self._begin(listening, peer_socket)

    def _know_members(self) -> None:
        """Update the links to the members of the configuration, now and after every change."""
        self.links.members = self.node.membership
        self.node.on_members_changed = self._follow_members
        self._follow_members()
        settings = self.settings
        members = self.node.core.configs.current.members()
        if settings.peers and not settings.join and sorted(settings.peers) != members:
            log.info("ignoring --peers: the cluster's committed members are {members}", members=members)
        if settings.node_id not in members:
            log.info("node {id} is not a member yet; waiting to be added", id=settings.node_id)

    def _follow_members(self) -> None:
        addresses = addresses_of(self.node.core.configs.current, self.settings.first_members())
        addresses.pop(self.settings.node_id, None)
        self.links.follow(addresses)

    def _level_required(self, disk: Disk) -> None:
        """Prepare for an entry that raises the feature level: mark the directory, close links to older builds."""
        self._mark_level(disk)
        self.links.recheck()

    def _mark_level(self, disk: Disk) -> None:
        """Write META in the format that builds without feature levels reject.

        Such a build would read the log and ignore the entry. If META cannot be written, the node continues, and the
        next start tries again: the mark matters only if an operator downgrades by two builds.
        """
        try:
            data = read_file(disk, META)
            if decode_meta(data)["format"] != META_FORMAT_WITH_LEVEL:
                replace_file(disk, "", META, with_level(data))
        except (OSError, MetaError) as error:
            log.error("cannot mark {file} with the feature level: {why}", file=disk.where(META), why=_one_line(error))

    def _open_listeners(self) -> dict[socket.socket, TlsContexts | None]:
        """Listen for clients; return each socket with its TLS contexts, None for plain TCP."""
        settings = self.settings
        listening: dict[socket.socket, TlsContexts | None] = {}
        if settings.secure_client_address is not None and settings.tls is not None:
            contexts = TlsContexts(settings.tls)
            listening[self._bind(settings.secure_client_address, "client")] = contexts
        if settings.client_address != settings.secure_client_address:
            listening[self._bind(settings.client_address, "client")] = None
        return listening

    def _begin(self, listening: dict[socket.socket, TlsContexts | None], peer_socket: socket.socket | None) -> None:
        """Start writer, links, listener and timers."""
        reactor = self.reactor
        if all(map(_is_loopback, self._sockets)):
            share_processors()
        self._writer.start(self.node)
        if isinstance(self._writer, ThreadWriter):
            reactor.watch(self._writer.done_fd, self._writer.collect)
        self.links.start(self.node, peer_socket)
        self.clients.start(listening)
        gc.freeze()
        reactor.at_turn_end(self._turn_end)
        reactor.at_peers_served(self._peers_served)
        reactor.at_fault(self.node.on_failed)
        reactor.callLater(RAFT_TICK_MS / 1000, self._tick)
        reactor.addSystemEventTrigger("before", "shutdown", self._stop)
        if self.node.core.configs.current.voters == [self.settings.node_id]:
            # A lone voter waits for no other voter: skip the election timeout.
            for _ in range(2 * RaftConfig().election_ticks):
                self.node.core.tick()
        if peer_socket is not None and self._guard.is_open() and not _is_loopback(peer_socket):
            log.warn("the peer port accepts unauthenticated connections; set --peer-secret-file or peer certificates")
        log.info(
            "node {id} serves clients on {host}:{port}, data in {data}, {form}",
            id=self.settings.node_id,
            host=self.settings.client_address[0],
            port=self.settings.client_address[1],
            data=str(self.settings.data_dir),
            form=form(),
        )

    def _may_wait_for_disk(self) -> bool:
        """Return True if the main thread may wait for the disk, because there is no other work meanwhile.

        This holds while this node writes no snapshot, which would slow the disk. In addition the node must be the only
        voter, or the turn had at most one event and at most one command waits.
        """
        node = self.node
        is_alone = node.core.configs.current.voters == [self.settings.node_id]
        is_idle = self.reactor.is_calm and node.proposals.outstanding() <= 1
        return (is_alone or is_idle) and not node.snapshot_policy.is_snapshotting

    def _take_directory(self) -> Disk:
        data_dir = self.settings.data_dir
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FolderLock(data_dir)
        except BlockingIOError as error:
            raise ForeignDirectory(f"{data_dir} is in use by another process") from error
        except OSError as error:
            raise ConfigError(f"{data_dir}: {error.strerror}") from error
        return OsDisk(data_dir)

    def _bind(self, address: tuple[str, int], what: str) -> socket.socket:
        host, port = address
        try:
            sock = listening_socket(host, port)
        except OSError as error:
            raise CoordError(f"cannot listen for {what}s on {host}:{port}: {error.strerror}") from error
        self._sockets.append(sock)
        return sock

    def _read_meta(self, disk: Disk) -> dict[str, Any]:
        """Return META, the directory's record of its node and cluster. Write META at the first start."""
        settings = self.settings
        if META not in disk.names(""):
            if WAL_FOLDER in disk.names(""):
                raise StorageError(f"{disk.where(META)} is missing although there is a log. {_WITHOUT_META}")
            made = self._first_meta(disk)
            replace_file(disk, "", META, made)
            return decode_meta(made)
        try:
            meta = decode_meta(read_file(disk, META))
        except MetaError as error:
            raise StorageError(f"{disk.where(META)} is damaged: {error}. {_WITHOUT_META}") from error
        if meta["format"] not in (META_FORMAT, META_FORMAT_WITH_LEVEL):
            raise StorageError(f"{disk.where(META)}: format {meta['format']} is not known")
        owner, cluster = meta["node_id"], meta["cluster"]
        if owner != settings.node_id:
            raise ForeignDirectory(f"{settings.data_dir} belongs to node {owner}, not to node {settings.node_id}")
        if settings.cluster and cluster != settings.cluster_id().hex():
            raise ForeignDirectory(f"{settings.data_dir} belongs to another cluster than {settings.cluster!r}")
        return meta

    def _first_meta(self, disk: Disk) -> bytes:
        """Return META of a new directory: of a new cluster, or of the cluster that `--join` names."""
        settings = self.settings
        if not settings.join:
            # In a cluster of one node no other node must derive the same cluster id: use a random one.
            is_nameless = settings.is_alone() and not settings.cluster
            cluster = OsEntropy().token(16) if is_nameless else settings.cluster_id()
            return encode_meta(settings.node_id, cluster, settings.voters(), learners=settings.learners())
        from coord.server.membership.discovery import find_store

        found = find_store(settings.join, guard=self._guard)
        config = found.config
        if settings.cluster and found.cluster != settings.cluster_id():
            raise ConfigError(f"the store at {shown(found.address)} is another cluster than {settings.cluster!r}")
        if settings.node_id in config.voters:
            log.warn(
                "node {id} is a member that has lost its disk: its votes and acknowledgments do not count until the"
                " leader has made it a learner; it becomes a voter again when it has caught up",
                id=settings.node_id,
            )
        # An earlier node with this id may have voted; this node does not know its votes
        # (`coord.server.membership.joining`).
        renew_memory(disk, OsRng())
        log.info("joining the store of nodes {members}", members=config.members())
        return encode_meta(settings.node_id, found.cluster, config.voters, began=config.encode())

    def _serve_admin(self, words: FourLetterWords, backups: Backups) -> None:
        address = self.settings.admin_address
        if address is None:
            return
        from coord.server.admin.http import admin_site

        try:
            site = admin_site(
                self.settings,
                self.node,
                self.links,
                words,
                backups,
                self._readiness,
                self._writer.spans,
                self.reactor.turns,
            )
            self._admin = site.listen(self.reactor, *address)
            backups.admit(address)
            if self.settings.drill_links:
                from coord.peers.partition import CUT_PATH, HEAL_PATH, PartitionEndpoint

                endpoint = PartitionEndpoint(self.reactor, self.links, backups.token)
                site.actions |= {CUT_PATH: endpoint.answer_cut, HEAL_PATH: endpoint.answer_heal}
        except Exception as error:
            raise CoordError(f"cannot listen for the admin port on {address[0]}:{address[1]}: {error}") from error

    # --- running ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._stopped_for_good():
            self.reactor.callLater(RAFT_TICK_MS / 1000, self._tick)
            try:
                if not self._is_led:
                    self._hasten()
                self.node.tick()
                self._readiness.tick()
                self._revoked.tick()
                if self._recovered_to and self.node.applied_index >= self._recovered_to:
                    # The entries read at the start have been freed; they lay between znodes in memory.
                    self._recovered_to = 0
                    return_memory()
            except Exception as error:  # a broken invariant: stop the node
                self.node.on_failed(error)

    def _hasten(self) -> None:
        """After the start, hold the first election as soon as a majority is connected, before the timeout.

        This does not disturb an existing leader: its followers reject the pre-vote. The connected voters become
        candidates one after the other, in the order of their ids, so that votes are not split. If votes split anyway,
        the next timeout is random as usual.
        """
        node = self.node
        own = self.settings.node_id
        voters = node.core.configs.current.voters
        present = [peer for peer in self.links.connected_both_ways() if peer in voters]
        if node.core.leader:
            self._is_led = True
        elif own in voters and not node.core.abstains() and 2 * len(present) + 2 > len(voters):
            self._is_led = True
            node.core.hasten(1 + HASTENED_APART_TICKS * sum(peer < own for peer in present))

    def _peers_served(self) -> None:
        """Apply the entries that peers have sent. The reactor calls this before it serves clients."""
        try:
            self.node.peers_served()
        except Exception as error:  # a broken invariant: stop the node
            log.failure("exception while applying entries from peers")
            self.node.on_failed(error)

    def _turn_end(self) -> bool:
        """End a turn; return True if there is more to do at once. The reactor calls this after each turn."""
        node = self.node
        has_more = False
        if node.failure is None:
            try:
                has_more = node.turn_end()
            except Exception as error:  # a broken invariant: stop the node
                log.failure("exception at the end of a turn")
                self.node.on_failed(error)
        if node.membership.removed_at and not self._is_stopping:
            self._removal.turn_end()
        if node.failure is None:
            has_more = self.clients.send_all() or has_more
            if self._stopped is not None and node.core.leadership is None:
                self._let_go()
        elif not self._is_stopping:
            self._is_stopping = True
            self._status = EXIT_FAILED
            log.error("node {id} stops: {why}", id=self.settings.node_id, why=_one_line(node.failure))
            self.reactor.stop()
        return has_more

    def _left(self) -> None:
        """End the process after this node was removed. Exit status 0 keeps a supervisor from restarting it."""
        if not self._is_stopping:
            self._is_stopping = True
            self.reactor.stop()

    # --- stop ---------------------------------------------------------------------------------------------------------

    def _stopped_for_good(self) -> bool:
        return self._is_stopping and self._stopped is None

    def _stop(self) -> Deferred[None] | None:
        """Stop on SIGTERM. A leader transfers leadership first, so that clients are hardly interrupted."""
        self._is_stopping = True
        if self.node.failure is not None or not self.node.membership.hand_over():
            return None
        log.info("node {id} transfers leadership and stops", id=self.settings.node_id)
        self._stopped = Deferred()
        self.reactor.callLater(HAND_OVER_S, self._let_go)
        return self._stopped

    def _let_go(self) -> None:
        if self._stopped is not None:
            stopped, self._stopped = self._stopped, None
            stopped.callback(None)

    def finish(self) -> int:
        """Sync the log and release the directory after the reactor has stopped. Return the exit status."""
        self.clients.stop()
        self.links.stop()
        self._job.stop()
        if self.node.failure is None:
            self._writer.close()
        if self._lock is not None:
            self._lock.release()
        log.info("node {id} has stopped", id=self.settings.node_id)
        return self._status

    def abandon(self) -> None:
        """Release sockets and directory after a failed start."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.close()
        if self._lock is not None:
            self._lock.release()


def _is_loopback(listening: socket.socket) -> bool:
    return is_loopback(str(listening.getsockname()[0]))


def most_clients(asked: int, descriptors: int) -> int:
    """Return the limit of client connections: `asked` (0: no limit), but at most what `descriptors` allow.

    OWN_DESCRIPTORS are reserved for the node. Otherwise clients could take the last descriptor, and the node could
    open neither the next log segment nor a link to a peer.
    """
    room = max(descriptors // 2, descriptors - OWN_DESCRIPTORS)
    return min(asked, room) if asked else room


def _client_limits(settings: StoreSettings) -> ClientLimits:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections_max = most_clients(settings.connections_max, descriptors)
    if settings.connections_max > connections_max:
        log.warn(
            "--max-connections is {asked}, but only {count} are possible: this process may open {descriptors} files",
            asked=settings.connections_max,
            count=connections_max,
            descriptors=descriptors,
        )
    return ClientLimits(
        connections_per_address_max=settings.connections_per_address_max,
        connections_max=connections_max,
        frame_bytes_max=settings.frame_bytes_max,
        connect_timeout_ms=settings.connect_timeout_ms,
        stall_ms=settings.stall_timeout_ms,
    )


def _one_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif not isinstance(error, CoordError):
        text = f"{type(error).__name__}: {text}"
    return " ".join(text.split())


__all__ = ["StoreSettings", "run"]
