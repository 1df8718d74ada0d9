"""The store that the shared options name: its address and root, a session, and messages for its errors."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionLoss,
    NoAuthError,
    OperationTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from cli.common.access import open_store, store_access
from cli.common.errors import CliError, UnreachableError
from cli.common.local import is_held, read_cluster, read_super, require_cluster, starting
from cli.common.names import Names
from cli.common.options import Globals
from coord.client.access import StoreAccess
from regions.records.znodes import CorruptZnode


def store_hosts(given: Globals) -> str:
    """Return `host:port,…` of the store: --store, RK_STORE, or the local cluster's store. Raise CliError for none."""
    return given.explicit_store() or require_cluster(given.data_path).store


def rights_of(given: Globals) -> StoreAccess:
    """Return the settings for operations that require super: the local cluster's credential unless one was given."""
    access = store_access(given)
    local = read_cluster(given.data_path)
    if access.auth or access.sasl or local is None or local.outside or local.store != store_hosts(given):
        return access
    return dataclasses.replace(access, auth=read_super(given.data_path))


def root_of(given: Globals) -> str:
    """Return the root znode: --root, the local cluster's root, or the default."""
    if not given.is_root_named and given.explicit_store() is None:
        local = read_cluster(given.data_path)
        if local is not None:
            return local.root
    return given.root_path


@contextlib.contextmanager
def store_errors(hosts: str) -> Iterator[None]:
    """Turn errors of a session with the store into one clear line: lost, refused, or a znode that cannot be decoded."""
    try:
        yield
    except (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooTimeoutError) as error:
        raise UnreachableError(
            f"the store at {hosts} stopped answering ({type(error).__name__})",
            "Try again; `rk status` shows what runs.",
        ) from error
    except NoAuthError as error:
        raise CliError(
            f"the store at {hosts} denied access: its access lists require another credential",
            "Give the cluster's credential with --store-auth (RK_STORE_AUTH); a wrong password has the same effect.",
        ) from error
    except SessionClosedRequireSaslError as error:
        raise CliError(
            f"the store at {hosts} serves only clients that authenticate, and this one proved no identity of a scheme"
            " that it requires",
            "Give your credentials with --certs-dir DIR (RK_CERTS_DIR), or what the store knows: --store-auth,"
            " --store-sasl or --store-tls-cert (docs/store/security.md).",
        ) from error
    except CorruptZnode as error:
        raise CliError(
            f"cannot decode a znode: {error}",
            "Another program or a newer version wrote it. `rk fsck` lists all such znodes.",
        ) from error


@contextlib.contextmanager
def open_named_store(given: Globals, access: StoreAccess, timeout_s: float | None = None) -> Iterator[KazooClient]:
    """Yield a session with the store that the shared options name; every error becomes one clear line.

    `timeout_s`: as for `open_store`.
    """
    hosts, local = store_hosts(given), read_cluster(given.data_path)
    is_local = local is not None and local.store == hosts
    names = Names([], local if is_local else None).by_address()
    try:
        with store_errors(hosts), open_store(hosts, timeout_s, access, names) as client:
            yield client
    except UnreachableError as error:
        if is_local and local is not None and not local.supervisor_pid:
            raise not_running(given) from error
        raise


def not_running(given: Globals) -> UnreachableError:
    """Return the error for a local cluster that does not run. The hint says how to start the cluster; or to wait, if
    the cluster is starting."""
    if is_held(given.data_path):
        return starting(given.data_path)
    where = "" if given.data_dir is None else f" --data-dir {given.data_dir}"
    return UnreachableError(f"the cluster in {given.data_path} is not running", f"Start it: rk up{where}")
