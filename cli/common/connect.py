"""The cluster as a command uses it: its znodes, through kazoo, and its masters and servers, through RPC.

Every failure to reach something becomes one `CliError` that names the address and a remedy. This module prints only the
znodes that could not be decoded and were skipped.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import click
import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from cli.common.access import PROBE_S, store_access
from cli.common.asking.refusals import received, refusal
from cli.common.asking.store import open_named_store, root_of, store_hosts
from cli.common.errors import CliError, NotFoundError, UnreachableError, UsageFaultError
from cli.common.local import LocalCluster, knows_masters_alone, local_cluster_id, read_cluster
from cli.common.options import DEFAULT_ROOT, Globals
from cli.common.waiting import is_limited, limit_s, waiting
from coord.client.access import OPEN_ACCESS, StoreAccess
from coord.errors import shown_s
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from master.client import MasterClient, NoLeader, split_address
from regions import messages
from regions.messages.staleness import AsOf, Bound
from regions.records.model import ActiveRecord, BarRecord, MasterRecord, ServerRecord, TableRecord
from regions.records.znodes import (
    CorruptZnode,
    Layout,
    decode_active,
    decode_bar,
    decode_cluster,
    decode_master,
    decode_server,
    decode_table,
)

T = TypeVar("T", bound=msgspec.Struct)

#: Time limit for a master to become active and to answer.
MASTER_TIMEOUT_S: Final = 15.0
#: Time limit of one answer of the store. kazoo itself gives up when the session is lost.
READ_TIMEOUT_S: Final = 15.0
#: Age limit of a list of servers that is used for names only.
_FOR_NAMES: Final = Bound(max_ms=60_000)


class Cluster:
    """One cluster, accessed through one open store session."""

    def __init__(
        self,
        client: KazooClient,
        hosts: str,
        root: str,
        local: LocalCluster | None = None,
        access: StoreAccess = OPEN_ACCESS,
        masters: Sequence[str] = (),
        cluster_id: str = "",
    ) -> None:
        """`masters`: addresses to send requests to; by default those in the store. `cluster_id`: the intended
        cluster, if the user named it."""
        self.client = client
        self.access = access
        self.hosts = hosts
        self.layout = Layout("" if root == "/" else root)
        self.local = local
        #: Staleness that reads allow (None: only the active master answers), and the age of the oldest answer so far.
        self.bound = messages.NO_BOUND
        self.as_of: AsOf | None = None
        #: Znodes that could not be decoded and were skipped: path -> reason.
        self.unreadable: dict[str, str] = {}
        self._cluster_id = cluster_id
        self._masters = MasterClient(masters, discover=None if masters else self._discover, cluster=self.cluster_id)

    def get(self, path: str) -> bytes | None:
        """Return a znode's value, or None if the znode does not exist."""
        try:
            with self._reading():
                data: bytes = self.client.get(path)[0]
        except NoNodeError:
            return None
        return data

    def children(self, path: str) -> list[str]:
        """Return the names below a znode, sorted; [] if the znode does not exist."""
        try:
            with self._reading():
                return sorted(self.client.get_children(path))
        except NoNodeError:
            return []

    def get_all(self, parent: str) -> dict[str, bytes]:
        """Return the values of all znodes below `parent`, by name; deleted ones are skipped. Pipelined."""
        return self.get_many({name: f"{parent}/{name}" for name in self.children(parent)})

    def get_many(self, paths: dict[str, str]) -> dict[str, bytes]:
        """Return the values of the znodes at `paths`, under the same keys; missing ones are skipped."""
        asked = [(key, self.client.get_async(path)) for key, path in paths.items()]
        found = {}
        for key, answer in asked:
            with contextlib.suppress(NoNodeError), self._reading():
                found[key] = answer.get()[0]
        return found

    def get_stats(self, paths: dict[str, str]) -> dict[str, tuple[bytes, ZnodeStat]]:
        """Return value and stat of the znodes at `paths`, under the same keys; missing ones are skipped."""
        asked = [(key, self.client.get_async(path)) for key, path in paths.items()]
        found = {}
        for key, answer in asked:
            with contextlib.suppress(NoNodeError), self._reading():
                found[key] = answer.get()
        return found

    def get_versions(self, paths: Sequence[str]) -> list[tuple[str, bytes, int]]:
        """Return path, value and version of the znodes at `paths`; missing ones are skipped."""
        asked = [(path, self.client.get_async(path)) for path in paths]
        found = []
        for path, answer in asked:
            with contextlib.suppress(NoNodeError), self._reading():
                data, stat = answer.get()
                found.append((path, data, stat.version))
        return found

    def exists(self) -> bool:
        """Return True if a RegionKeeper cluster has ever run below this root."""
        with self._reading():
            return self.client.exists(self.layout.epoch) is not None

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return waiting(f"the store at {self.hosts} to answer", limit_s(READ_TIMEOUT_S))

    def require(self) -> None:
        """Raise NotFoundError unless `exists`."""
        if not self.exists():
            raise NotFoundError(
                f"the store at {self.hosts} has no cluster below {self.layout.root or '/'}",
                "A master creates it when it first becomes active; --root names another root.",
            )

    def cluster_id(self) -> str:
        """Return the id that every request to a master carries; "" while unknown."""
        if not self._cluster_id:
            self._cluster_id = self._find_cluster_id()
        return self._cluster_id

    def _find_cluster_id(self) -> str:
        """Return the id in the store."""
        data = self.get(self.layout.cluster)
        try:
            return "" if data is None else decode_cluster(data, self.layout.cluster).cluster_id
        except CorruptZnode as error:
            self.unreadable[error.path] = error.reason
            return ""

    def check_cluster_id(self) -> None:
        """Raise CliError if the store belongs to another cluster than the user named."""
        found = self._find_cluster_id() if self._cluster_id else ""
        if found and found != self._cluster_id:
            raise CliError(
                f"the store at {self.hosts} belongs to cluster {found}, but --cluster-id names {self._cluster_id}",
                "Give the store of the intended cluster, or omit --cluster-id (RK_CLUSTER_ID).",
            )

    def active(self) -> ActiveRecord | None:
        """Return the active master, or None. If /active cannot be decoded, return the master that reports itself as
        active."""
        data = self.get(self.layout.active)
        try:
            return None if data is None else decode_active(data, self.layout.active)
        except CorruptZnode as error:
            self.unreadable[error.path] = error.reason
            return next((found for one in self.masters() if (found := _if_active(one)) is not None), None)

    def masters(self) -> list[MasterRecord]:
        """Return the live masters by address."""
        found = self.records(self.layout.masters, decode_master).values()
        return sorted(found, key=lambda one: (one.host, one.port))

    def servers(self) -> list[ServerRecord]:
        """Return the live region servers by address."""
        found = self.records(self.layout.servers, decode_server).values()
        return sorted(found, key=lambda one: (one.host, one.port))

    def bars(self) -> list[BarRecord]:
        """Return the servers that get no regions because they were fenced."""
        return list(self.records(self.layout.barred, decode_bar).values())

    def tables(self) -> list[TableRecord]:
        """Return all tables by name."""
        found = self.records(self.layout.tables, decode_table).values()
        return sorted(found, key=lambda one: one.name)

    def records(self, parent: str, decode: Callable[[bytes, str], T]) -> dict[str, T]:
        """Return the records below `parent`, by name. A record that cannot be decoded is recorded and skipped."""
        return self.understood({f"{parent}/{name}": data for name, data in self.get_all(parent).items()}, decode)

    def understood(self, values: dict[str, bytes], decode: Callable[[bytes, str], T]) -> dict[str, T]:
        """Decode the values of the znodes at these paths, by the last name of the path; skip as `records` does."""
        found = {}
        for path, data in values.items():
            try:
                found[path.rpartition("/")[2]] = decode(data, path)
            except CorruptZnode as error:
                self.unreadable[error.path] = error.reason
        return found

    def transitions_left(self) -> list[str]:
        """Return the paths of all transitions."""
        shards = self.layout.shard_paths()
        asked = [(path, self.client.get_children_async(path)) for path in shards]
        found = []
        for path, answer in asked:
            with contextlib.suppress(NoNodeError), self._reading():
                found += [f"{path}/{name}" for name in answer.get()]
        return sorted(found)

    def _discover(self) -> list[str]:
        """Return the masters' addresses in the store: the active one first, or last if a standby may answer."""
        active = self.active()
        first = [] if active is None else [f"{active.host}:{active.port}"]
        if self.bound.is_none:
            return first
        return [one for one in (f"{one.host}:{one.port}" for one in self.masters()) if one not in first] + first

    def ask_master(self, message: msgspec.Struct, expect: type[T], timeout_s: float = MASTER_TIMEOUT_S) -> T:
        """Send a request to the active master; wait for one to become active (a failover takes seconds).

        --timeout takes the place of `timeout_s`; the time that the request itself may wait is added.
        A read with a `bound` may go to any master. A request with an unknown outcome is repeated only if masters
        recognize the repetition. Raise CliError with the master's reason, UnreachableError if none is active in time.
        """
        if not self.bound.is_none and "bound" in message.__struct_fields__:
            message = msgspec.structs.replace(message, bound=self.bound)
        if is_limited():
            timeout_s = limit_s(timeout_s) + getattr(message, "wait_ms", 0) / 1000
        try:
            with waiting(self._awaited(message)):
                reply = self._masters.ask(message, expect, timeout_s)
        except RpcError as error:
            raise refusal(error, message) from error
        except NoLeader as error:
            hint = "`rk health` asks every master; their logs contain the reason."
            if getattr(message, "wait_ms", 0):
                hint += f"\nBut {received(message)}"
            raise UnreachableError(f"no master is active after {shown_s(timeout_s)} s: {error}", hint) from error
        except KeyboardInterrupt:
            if getattr(message, "wait_ms", 0):
                click.echo(f"\nrk: interrupted; {received(message)}", err=True)
            raise
        as_of: AsOf | None = getattr(reply, "as_of", None)
        if as_of is not None and (self.as_of is None or as_of.stale_ms >= self.as_of.stale_ms):
            self.as_of = as_of
        return reply

    def _awaited(self, message: msgspec.Struct) -> Callable[[], str]:
        """Return the words for a wait for an answer: the request, and the masters' replies so far."""
        return lambda: f"the active master to answer {type(message).__name__}: {self._masters.story() or 'none known'}"


class _NoStore:
    """Placeholder for a session with the store."""

    def __getattr__(self, _: str) -> object:
        raise UsageFaultError(
            "this command reads the store, but only masters were named", "Give --store (or RK_STORE) as well."
        )


class MastersAlone(Cluster):
    """A cluster whose masters' addresses alone are known. All data come from the masters' answers."""

    def __init__(self, masters: Sequence[str], cluster_id: str = "") -> None:
        super().__init__(_NoStore(), "", DEFAULT_ROOT, masters=masters, cluster_id=cluster_id)
        self._addresses = masters

    def _find_cluster_id(self) -> str:
        """Return the cluster id of the first master that answers; the other masters must have the same id.

        There is no proof that the user means this cluster, so confirmations and results show the id.
        """
        for address in self._addresses:
            with contextlib.suppress(RpcError):
                wanted = messages.GetMasterStatus()
                found = call_blocking(split_address(address), wanted, PROBE_S, expect=messages.MasterStatus)
                if found.cluster:
                    return found.cluster
        return ""

    def exists(self) -> bool:
        """Return True: masters always have a cluster."""
        return True

    def active(self) -> ActiveRecord | None:
        """Return the active master according to the masters."""
        found = self.ask_master(messages.ListMasters(), messages.Masters)
        for one in found.masters:
            if f"{one.host}:{one.port}" == found.active:
                return ActiveRecord(one.uuid, one.host, one.port, one.start_code, admin_port=one.admin_port)
        return None

    def masters(self) -> list[MasterRecord]:
        """Return the live masters by address."""
        return self.ask_master(messages.ListMasters(), messages.Masters).masters

    def servers(self) -> list[ServerRecord]:
        """Return the live region servers by address."""
        found = self.ask_master(messages.ListServers(_FOR_NAMES), messages.Servers).servers
        return sorted((one.server for one in found), key=lambda one: (one.host, one.port))


def _if_active(master: MasterRecord) -> ActiveRecord | None:
    """Return this master if it is active; None if it is a standby or does not answer."""
    address = (master.host, master.port)
    try:
        status = call_blocking(address, messages.GetMasterStatus(), PROBE_S, expect=messages.MasterStatus)
    except RpcError:
        return None
    if status.role == "standby":
        return None
    return ActiveRecord(status.uuid, *address, master.start_code, status.epoch, master.admin_port)


def of_cluster(given: Globals) -> str:
    """Return " of cluster ID" for confirmations and results if only masters' addresses determine the cluster, else
    ""."""
    if not knows_masters_alone(given):
        return ""
    with open_cluster(given) as cluster:
        found = cluster.cluster_id()
    return f" of cluster {found}" if found else ""


@contextlib.contextmanager
def open_cluster(
    given: Globals, *, must_exist: bool = True, bound: Bound = messages.NO_BOUND, timeout_s: float | None = None
) -> Iterator[Cluster]:
    """Yield the cluster that the shared options name. Raise CliError.

    `bound`: the staleness that its reads allow. `timeout_s`: for the store's session, by default the rest of --timeout.
    """
    masters = given.master_addresses()
    if knows_masters_alone(given):
        local = read_cluster(given.data_path)
        alone = MastersAlone(masters, given.cluster_named() or (local_cluster_id(local) if local else ""))
        alone.bound = bound
        yield alone
        return
    hosts = store_hosts(given)
    local = read_cluster(given.data_path)
    access, root = store_access(given), root_of(given)
    local = local if local and local.store == hosts else None
    with open_named_store(given, access, timeout_s) as client:
        cluster = Cluster(client, hosts, root, local, access, masters, given.cluster_named())
        cluster.bound = bound
        cluster.check_cluster_id()
        if must_exist:
            cluster.require()
        yield cluster
        for path, why in cluster.unreadable.items():
            click.echo(f"rk: skipped {path}, which cannot be decoded: {why} (rk fsck)", err=True)


def ask_active(cluster: Cluster, message: msgspec.Struct, expect: type[T], timeout_s: float = 3.0) -> T:
    """Return the active master's answer without waiting for a failover.

    Raise UnreachableError if no active master answers, CliError if it rejects the request."""
    active = cluster.active()
    if active is None:
        raise UnreachableError("no master is active")
    timeout_s = limit_s(timeout_s)
    try:
        address, mine = (active.host, active.port), cluster.cluster_id()
        with waiting(f"the active master at {address[0]}:{address[1]}"):
            return call_blocking(address, message, timeout_s, expect=expect, cluster=mine)
    except RpcError as error:
        if error.code in (Code.UNREACHABLE, Code.TIMEOUT, messages.NOT_LEADER, messages.BUSY, messages.NOT_FOUND):
            raise UnreachableError(f"the active master does not answer: {error.message or error.code}") from error
        raise refusal(error, message) from error


def new_request_id() -> str:
    """Return a new request ID. The master carries out requests with one ID only once."""
    return str(uuid.uuid4())
