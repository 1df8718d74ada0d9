"""The cluster as a command sees it: its znodes, through kazoo, and its masters and servers, through RPC.

Whatever does not answer becomes one `CliError` that names the address and the way out. Nothing is printed here but
which znodes could not be understood and were left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import click
import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from cli.common.access import connect, kazoo_options, misfit, store_access
from cli.common.errors import CliError, NotFoundError, UnreachableError, UsageFaultError
from cli.common.local import LocalCluster, local_cluster_id, read_cluster, read_super, require_cluster
from cli.common.options import DEFAULT_ROOT, Globals
from coord.client.access import OPEN_ACCESS, StoreAccess
from coord.errors import ConfigError
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from master.client import MasterClient, NoLeader
from master.client import split_address as split_address
from regions import messages
from regions.messages.staleness import AsOf, Bound
from regions.records.model import ActiveRecord, BarRecord, MasterRecord, RegionState, ServerRecord, TableRecord
from regions.records.znodes import (
    CorruptZnode,
    Layout,
    decode_active,
    decode_bar,
    decode_cluster,
    decode_master,
    decode_server,
    decode_table,
    decode_transition,
)

T = TypeVar("T", bound=msgspec.Struct)

#: How long a store that accepts connections may take to give a session.
CONNECT_TIMEOUT_S: Final = 10.0
SESSION_TIMEOUT_S: Final = 10.0
#: How long a command waits for a master to become active, and for its answer.
MASTER_TIMEOUT_S: Final = 15.0
#: How old a list of servers may be that only tells their names.
_FOR_NAMES: Final = Bound(max_ms=60_000)
_PROBE_TIMEOUT_S: Final = 1.0
#: A session that is not there by then makes us look for what does not fit.
_FIRST_LOOK_S: Final = 1.5


def store_hosts(given: Globals) -> str:
    """`host:port,…` of the store: --store or RK_STORE, else the local cluster's. Raises CliError for neither."""
    return given.explicit_store() or require_cluster(given.data_path).store


def rights_of(given: Globals) -> StoreAccess:
    """How to get into the store for what only super may do: the local cluster's own credential unless one was given."""
    access = store_access(given)
    local = read_cluster(given.data_path)
    if access.auth or access.sasl or local is None or local.outside or local.store != store_hosts(given):
        return access
    return dataclasses.replace(access, auth=read_super(given.data_path))


def root_of(given: Globals) -> str:
    """The root znode: --root, else the local cluster's own, else the default."""
    if given.root is None and given.explicit_store() is None:
        local = read_cluster(given.data_path)
        if local is not None:
            return local.root
    return given.root_path


def is_answering(address: str, timeout_s: float = _PROBE_TIMEOUT_S) -> bool:
    """Return whether the address accepts a TCP connection."""
    with contextlib.suppress(OSError), socket.create_connection(split_address(address), timeout=timeout_s):
        return True
    return False


def four_letter(address: str, word: str, timeout_s: float = _PROBE_TIMEOUT_S, access: StoreAccess = OPEN_ACCESS) -> str:
    """A store node's answer to a four-letter word; "" when it does not answer."""
    chunks = []
    with (
        contextlib.suppress(OSError, ConfigError),
        connect(split_address(address), access, timeout_s) as connection,
    ):
        connection.settimeout(timeout_s)
        connection.sendall(word.encode())
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks).decode(errors="replace")


@contextlib.contextmanager
def open_store(
    hosts: str, timeout_s: float = CONNECT_TIMEOUT_S, access: StoreAccess = OPEN_ACCESS
) -> Iterator[KazooClient]:
    """A kazoo session with the store, closed on leaving.

    Raises UnreachableError when no address accepts a connection, or none gives a session in time, CliError when they do
    not fit `access`, as far as that can be found out.
    """
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # its retries are not news; what matters is raised
    addresses = [part for part in hosts.partition("/")[0].split(",") if part]
    if not any(is_answering(address) for address in addresses):
        raise UnreachableError(
            f"no store answers at {hosts}",
            "Is the cluster up? `rk up` starts one here; --store or RK_STORE names another.",
        )
    try:
        client = KazooClient(hosts=hosts, timeout=SESSION_TIMEOUT_S, **kazoo_options(access))
        access.tls_context()  # says what is wrong with the files, which kazoo would repeat to itself for ever
    except ConfigError as error:
        raise CliError(str(error), "Look at the --store-tls options, or their variables.") from error
    try:
        _begin_session(client, hosts, addresses, timeout_s, access)
        yield client
    finally:
        with contextlib.suppress(KazooException):
            client.stop()
            client.close()


def _begin_session(
    client: KazooClient, hosts: str, addresses: list[str], timeout_s: float, access: StoreAccess
) -> None:
    """Start the client; whatever keeps it from a session is looked for early, since kazoo itself just tries on."""
    refused: list[str] = []

    def listen(_: object) -> None:
        # A refused credential is kazoo's state for a moment only, then it is closed as before its start.
        if client.client_state == "AUTH_FAILED":
            refused.append(client.client_state)

    client.add_listener(listen)
    try:
        started = client.start_async()
        started.wait(min(timeout_s, _FIRST_LOOK_S))
        if not client.connected and not refused:
            for address in addresses:
                what, hint = misfit(split_address(address), access)
                if what:
                    raise CliError(what, hint)
            started.wait(max(0.0, timeout_s - _FIRST_LOOK_S))
        if access.sasl and client.connected:
            # kazoo is connected before it has proved anything; the first answer tells.
            with contextlib.suppress(KazooException):
                client.sync_async("/").get(timeout=timeout_s)
        if refused:
            raise AuthFailedError
        if not client.connected:
            raise UnreachableError(
                f"the store at {hosts} accepts connections but gave no session within {timeout_s:g} s",
                "It has probably no leader: `rk status` shows its nodes, their logs say why.",
            )
    except AuthFailedError as error:
        raise CliError(
            f"the store at {hosts} refuses the credential of --store-sasl or --store-auth",
            "User or password is wrong, or the store has no such users (rk coord run --sasl-users).",
        ) from error


@contextlib.contextmanager
def store_errors(hosts: str) -> Iterator[None]:
    """Turn what kazoo raises when the store goes away under a command into one clear line."""
    try:
        yield
    except (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooTimeoutError) as error:
        raise UnreachableError(
            f"the store at {hosts} stopped answering ({type(error).__name__})",
            "Try again; `rk status` shows what runs.",
        ) from error
    except NoAuthError as error:
        raise CliError(
            f"the store at {hosts} does not let us do that: access lists are for somebody else",
            "Give the cluster's credential with --store-auth (RK_STORE_AUTH); a wrong password looks the same.",
        ) from error
    except CorruptZnode as error:
        raise CliError(
            f"cannot understand a znode: {error}",
            "It was written by something else, or by a newer version. `rk fsck` names all of them.",
        ) from error


class Cluster:
    """One cluster, through one open store session."""

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
        """`masters`: whom to ask; else those that the store knows. `cluster_id`: the cluster that is meant, if the
        user said so."""
        self.client = client
        self.access = access
        self.hosts = hosts
        self.layout = Layout("" if root == "/" else root)
        self.local = local
        #: What reads may lack; none: the active master answers. And how old the oldest answer to one was.
        self.bound = messages.NO_BOUND
        self.as_of: AsOf | None = None
        #: Znodes that could not be understood and were left out of what was read: path -> why.
        self.unreadable: dict[str, str] = {}
        self._cluster_id = cluster_id
        self._masters = MasterClient(masters, discover=None if masters else self._discover, cluster=self.cluster_id)

    def get(self, path: str) -> bytes | None:
        """A znode's value; None when there is no such znode."""
        try:
            data: bytes = self.client.get(path)[0]
        except NoNodeError:
            return None
        return data

    def children(self, path: str) -> list[str]:
        """Names below a znode, sorted; none when it does not exist."""
        try:
            return sorted(self.client.get_children(path))
        except NoNodeError:
            return []

    def get_all(self, parent: str) -> dict[str, bytes]:
        """Values of all znodes below `parent`, by name; those that vanish meanwhile are left out. Pipelined."""
        return self.get_many({name: f"{parent}/{name}" for name in self.children(parent)})

    def get_many(self, paths: dict[str, str]) -> dict[str, bytes]:
        """Values of the znodes at `paths`, under the same keys; missing ones are left out."""
        waiting = [(key, self.client.get_async(path)) for key, path in paths.items()]
        found = {}
        for key, answer in waiting:
            with contextlib.suppress(NoNodeError):
                found[key] = answer.get()[0]
        return found

    def get_versions(self, paths: Sequence[str]) -> list[tuple[str, bytes, int]]:
        """Return path, value and version of the znodes at `paths`; missing ones are left out."""
        waiting = [(path, self.client.get_async(path)) for path in paths]
        found = []
        for path, answer in waiting:
            with contextlib.suppress(NoNodeError):
                data, stat = answer.get()
                found.append((path, data, stat.version))
        return found

    def exists(self) -> bool:
        """Return whether a RegionKeeper cluster has ever run below this root."""
        return self.client.exists(self.layout.epoch) is not None

    def require(self) -> None:
        """Raises NotFoundError unless `exists`."""
        if not self.exists():
            raise NotFoundError(
                f"the store at {self.hosts} has no cluster below {self.layout.root or '/'}",
                "A master creates it when it first becomes active; --root names another place.",
            )

    def cluster_id(self) -> str:
        """Return the id that every request to a master carries; "" while it is not known."""
        if not self._cluster_id:
            self._cluster_id = self._find_cluster_id()
        return self._cluster_id

    def _find_cluster_id(self) -> str:
        """Return the id that the store has."""
        data = self.get(self.layout.cluster)
        try:
            return "" if data is None else decode_cluster(data, self.layout.cluster).cluster_id
        except CorruptZnode as error:
            self.unreadable[error.path] = error.reason
            return ""

    def check_cluster_id(self) -> None:
        """Raise CliError if the store is that of another cluster than the user named."""
        found = self._find_cluster_id() if self._cluster_id else ""
        if found and found != self._cluster_id:
            raise CliError(
                f"the store at {self.hosts} is that of cluster {found}, --cluster-id names {self._cluster_id}",
                "Give the store of the cluster that you mean, or leave --cluster-id (RK_CLUSTER_ID) away.",
            )

    def active(self) -> ActiveRecord | None:
        """The active master; None while there is none. Where its mark cannot be understood, whoever says that it is."""
        data = self.get(self.layout.active)
        try:
            return None if data is None else decode_active(data, self.layout.active)
        except CorruptZnode as error:
            self.unreadable[error.path] = error.reason
            return next((found for one in self.masters() if (found := _if_active(one)) is not None), None)

    def masters(self) -> list[MasterRecord]:
        """Live masters by address."""
        found = self.records(self.layout.masters, decode_master).values()
        return sorted(found, key=lambda one: (one.host, one.port))

    def servers(self) -> list[ServerRecord]:
        """Live region servers by address."""
        found = self.records(self.layout.servers, decode_server).values()
        return sorted(found, key=lambda one: (one.host, one.port))

    def bars(self) -> list[BarRecord]:
        """Servers that get no regions because they were fenced."""
        return list(self.records(self.layout.barred, decode_bar).values())

    def tables(self) -> list[TableRecord]:
        """All tables by name."""
        found = self.records(self.layout.tables, decode_table).values()
        return sorted(found, key=lambda one: one.name)

    def records(self, parent: str, decode: Callable[[bytes, str], T]) -> dict[str, T]:
        """The records below `parent`, by name. One that cannot be understood is noted, left out, and hides no other."""
        return self.understood({f"{parent}/{name}": data for name, data in self.get_all(parent).items()}, decode)

    def understood(self, values: dict[str, bytes], decode: Callable[[bytes, str], T]) -> dict[str, T]:
        """What the values of the znodes at these paths say, by the last name of the path; likewise."""
        found = {}
        for path, data in values.items():
            try:
                found[path.rpartition("/")[2]] = decode(data, path)
            except CorruptZnode as error:
                self.unreadable[error.path] = error.reason
        return found

    def transitions_left(self) -> list[str]:
        """Paths of every transition that exists: the regions in transition."""
        shards = self.layout.shard_paths()
        waiting = [(path, self.client.get_children_async(path)) for path in shards]
        found = []
        for path, answer in waiting:
            with contextlib.suppress(NoNodeError):
                found += [f"{path}/{name}" for name in answer.get()]
        return sorted(found)

    def states_in_transition(self) -> list[RegionState]:
        """The state of every transition that exists, read now."""
        paths = self.transitions_left()
        read = self.get_many({path: path for path in paths})
        return [one.state for one in self.understood(read, decode_transition).values()]

    def _discover(self) -> list[str]:
        """The masters' addresses, by the store: the active one first, or last if a standby will do."""
        active = self.active()
        first = [] if active is None else [f"{active.host}:{active.port}"]
        if self.bound.is_none:
            return first
        return [one for one in (f"{one.host}:{one.port}" for one in self.masters()) if one not in first] + first

    def ask_master(self, message: msgspec.Struct, expect: type[T], timeout_s: float = MASTER_TIMEOUT_S) -> T:
        """Send a request to the active master, waiting for one to become active (a failover takes seconds); a read goes
        to any master within `bound`, if there is one.

        A request whose outcome became unknown is not sent again unless masters recognise it.

        Raises CliError with the master's own reason, UnreachableError when none is active in time.
        """
        if not self.bound.is_none and "bound" in message.__struct_fields__:
            message = msgspec.structs.replace(message, bound=self.bound)
        try:
            reply = self._masters.ask(message, expect, timeout_s)
        except RpcError as error:
            raise refusal(error, message) from error
        except NoLeader as error:
            raise UnreachableError(
                f"no master is active (waited {timeout_s:g} s): {error}",
                "`rk status` shows the masters; their logs say why none is active.",
            ) from error
        as_of: AsOf | None = getattr(reply, "as_of", None)
        if as_of is not None and (self.as_of is None or as_of.stale_ms >= self.as_of.stale_ms):
            self.as_of = as_of
        return reply


class _NoStore:
    """Stands where a session with the store would."""

    def __getattr__(self, _: str) -> object:
        raise UsageFaultError(
            "this command reads the store, and only masters were named", "Give --store (or RK_STORE) as well."
        )


class MastersAlone(Cluster):
    """A cluster of which only masters are known. Everything comes from their answers."""

    def __init__(self, masters: Sequence[str], cluster_id: str = "") -> None:
        super().__init__(_NoStore(), "", DEFAULT_ROOT, masters=masters, cluster_id=cluster_id)
        self._addresses = masters

    def _find_cluster_id(self) -> str:
        """Return the id of the cluster of the first master that answers: the others must be of the same one.

        Nothing here says whether that is the cluster that the user means; questions and results show the id.
        """
        for address in self._addresses:
            with contextlib.suppress(RpcError):
                wanted = messages.GetMasterStatus()
                found = call_blocking(split_address(address), wanted, _PROBE_TIMEOUT_S, expect=messages.MasterStatus)
                if found.cluster:
                    return found.cluster
        return ""

    def exists(self) -> bool:
        """Masters have a cluster."""
        return True

    def active(self) -> ActiveRecord | None:
        """The active master, as the masters see it."""
        found = self.ask_master(messages.ListMasters(), messages.Masters)
        for one in found.masters:
            if f"{one.host}:{one.port}" == found.active:
                return ActiveRecord(one.uuid, one.host, one.port, one.start_code, admin_port=one.admin_port)
        return None

    def masters(self) -> list[MasterRecord]:
        """Live masters by address."""
        return self.ask_master(messages.ListMasters(), messages.Masters).masters

    def servers(self) -> list[ServerRecord]:
        """Live region servers by address."""
        found = self.ask_master(messages.ListServers(_FOR_NAMES), messages.Servers).servers
        return sorted((one.server for one in found), key=lambda one: (one.host, one.port))


def _if_active(master: MasterRecord) -> ActiveRecord | None:
    """Return the active master if this one is active; None if it is a standby or does not answer."""
    address = (master.host, master.port)
    try:
        status = call_blocking(address, messages.GetMasterStatus(), _PROBE_TIMEOUT_S, expect=messages.MasterStatus)
    except RpcError:
        return None
    if status.role == "standby":
        return None
    return ActiveRecord(status.uuid, *address, master.start_code, status.epoch, master.admin_port)


def refusal(error: RpcError, message: msgspec.Struct) -> CliError:
    """Return the error for the user about a call that a master or server refused."""
    text = error.message or error.code
    if error.code == messages.NOT_FOUND:
        return NotFoundError(text, error.hint or _way_out(error.code, message))
    if error.is_outcome_unknown:
        return CliError(
            f"{type(message).__name__}: {text}",
            error.hint or "It may have been done all the same: look before you repeat it.",
        )
    return CliError(text, error.hint or _way_out(error.code, message))


def _way_out(code: str, message: msgspec.Struct) -> str:
    """Return the hint for a refusal."""
    table = getattr(message, "table", "")
    name = getattr(message, "name", None) or table
    if code == messages.WRONG_CLUSTER:
        return (
            "Look at --masters and --store. --cluster-id names the cluster that is meant where neither a store nor the"
            " local cluster in --data-dir says so."
        )
    if code == messages.NOT_FOUND and table:
        return "`rk table list` shows the tables there are."
    if code == messages.NOT_FOUND and hasattr(message, "region_id"):
        return "`rk region list` shows the regions there are."
    if code == messages.BAD_REQUEST and hasattr(message, "region_id"):
        return f"`rk why {message.region_id}` says where it is, and what would help."
    if code == messages.ALREADY_EXISTS:
        return f"Choose another name; `rk table show {shlex.quote(name)}` shows that one."
    if code == messages.TIMED_OUT and name:
        return f"`rk why {shlex.quote(table or name)}` says what it waits for."
    return ""


@contextlib.contextmanager
def _start_again_hint(given: Globals, hosts: str, local: LocalCluster | None) -> Iterator[None]:
    """The store of a local cluster that does not run: the way out is to start that one."""
    try:
        yield
    except UnreachableError as error:
        if local is not None and local.store == hosts and not local.supervisor_pid:
            where = "" if given.data_dir is None else f" --data-dir {given.data_dir}"
            raise UnreachableError(
                f"the cluster in {given.data_path} does not run", f"Start it: rk up{where}"
            ) from error
        raise


def knows_masters_alone(given: Globals) -> bool:
    """Whether masters were named and no store, nor are they those of the local cluster. Raises UsageFaultError."""
    masters = given.master_addresses()
    if not masters or given.explicit_store() is not None:
        return False
    local = read_cluster(given.data_path)
    return local is None or not {one.address for one in local.masters}.issuperset(masters)


def of_cluster(given: Globals) -> str:
    """Return " of cluster ID" for questions and results where nothing but masters' addresses says which cluster is
    meant, else ""."""
    if not knows_masters_alone(given):
        return ""
    with open_cluster(given) as cluster:
        found = cluster.cluster_id()
    return f" of cluster {found}" if found else ""


@contextlib.contextmanager
def open_cluster(given: Globals, *, must_exist: bool = True, bound: Bound = messages.NO_BOUND) -> Iterator[Cluster]:
    """The cluster that the shared options name; `bound`: what its reads may lack. Raises CliError subclasses; see the
    module."""
    masters = given.master_addresses()
    if knows_masters_alone(given):
        local = read_cluster(given.data_path)
        alone = MastersAlone(masters, given.cluster_named() or (local_cluster_id(local) if local else ""))
        alone.bound = bound
        yield alone
        return
    hosts = store_hosts(given)
    local = read_cluster(given.data_path)
    access = store_access(given)
    opened = open_store(hosts, access=access)
    with store_errors(hosts), _start_again_hint(given, hosts, local), opened as client:
        local = local if local and local.store == hosts else None
        cluster = Cluster(client, hosts, root_of(given), local, access, masters, given.cluster_named())
        cluster.bound = bound
        cluster.check_cluster_id()
        if must_exist:
            cluster.require()
        yield cluster
        for path, why in cluster.unreadable.items():
            click.echo(f"rk: {path} cannot be understood, and is left out: {why} (rk fsck)", err=True)


def ask_active(cluster: Cluster, message: msgspec.Struct, expect: type[T], timeout_s: float = 3.0) -> T:
    """What the master that reigns now says; nobody is waited for. Raises UnreachableError when there is none that
    answers, CliError when it refuses."""
    active = cluster.active()
    if active is None:
        raise UnreachableError("no master is active")
    try:
        address, mine = (active.host, active.port), cluster.cluster_id()
        return call_blocking(address, message, timeout_s, expect=expect, cluster=mine)
    except RpcError as error:
        if error.code in (Code.UNREACHABLE, Code.TIMEOUT, messages.NOT_LEADER, messages.BUSY, messages.NOT_FOUND):
            raise UnreachableError(f"the active master gives no answer: {error.message or error.code}") from error
        raise CliError(error.message or error.code, error.hint) from error


def is_alive(server: ServerRecord, timeout_s: float = 1.5) -> bool:
    """Return whether a server's process answers now. Its session may outlive the process by seconds."""
    try:
        ask_server(server, messages.GetServerStatus(), messages.ServerStatus, timeout_s)
    except RpcError:
        return False
    return True


def ask_server(server: ServerRecord, message: msgspec.Struct, expect: type[T], timeout_s: float = 5.0) -> T:
    """One request to one region server. Raises RpcError."""
    return call_blocking((server.host, server.port), message, timeout_s, expect=expect)
