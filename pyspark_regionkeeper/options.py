"""Options of the data source, and the connection that every task opens from them.

    table          the table to read or to write
    view           instead of a table: history, runs or alarms
    start, stop    range of keys to read, as `rk scan --from KEY --to KEY`
    push-filters   true: conditions on key columns choose the range; Spark's own setting for that must be on (PUSHDOWN)
    threads        writes at once of one task
    timeout        seconds that one request may take, moves of its region included
    store, root, data-dir, certs-dir, store-auth, …   the cluster, as the options of `rk` of the same names

Where an option of the cluster is missing, the driver takes what `rk` would take: environment, context, configuration
file. Tasks get what the driver has found. A credential itself is never among these values, because Spark shows options
in its plans and pages: options name files (`@FILE`, a directory), and a credential in the driver's environment must be
in the executors' environment too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cli.common.access import as_absolute, credentials_of
from cli.common.asking.store import root_of, store_hosts
from cli.common.connect import Cluster, open_cluster
from cli.common.options import SETTINGS, Globals, variable_of
from cli.rows.opening import open_regions
from coord.security import process
from pyspark_regionkeeper.errors import SourceError, spoken
from regionserver.client import RegionClient

#: Spark's setting without which no Python data source gets filters.
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
VIEWS: Final = ("history", "runs", "alarms")
THREADS: Final = 4
THREADS_MAX: Final = 64
TIMEOUT_S: Final = 60.0
_SECRETS: Final = ("store-auth", "store-sasl")
_SETTINGS: Final = tuple(one[0] for one in SETTINGS)
_OWN: Final = ("table", "view", "start", "stop", "push-filters", "threads", "timeout")
_CLUSTER: Final = ("store", "root", "data-dir", "context", "cluster-id")
#: Set by `save` alone: the rows are encoded under this version of the schema, and sorted.
ENCODED: Final = "encoded"


class SourceCluster(msgspec.Struct, frozen=True):
    """The cluster as tasks find it. It has names of files, and no credential."""

    store: str
    root: str
    data_dir: str
    settings: dict[str, str]
    cluster_id: str = ""

    def globals(self) -> Globals:
        """Return the shared options of a command for this cluster."""
        given = Globals()
        given.uses_file = False
        given.store, given.root, given.data_dir = self.store, self.root, self.data_dir
        given.cluster_id = self.cluster_id or None
        given.store_settings = dict(self.settings)
        return given


class SourceOptions(msgspec.Struct, frozen=True):
    """Checked options."""

    connection: SourceCluster
    table: str = ""
    view: str = ""
    start: str = ""
    stop: str = ""
    threads: int = THREADS
    timeout_s: float = TIMEOUT_S
    encoded: int | None = None
    push_filters: bool = False


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Return the options with the cluster that they name. Raise SourceError."""
    values = {name.lower().replace("_", "-"): str(value) for name, value in given.items()}
    known = (*_OWN, *_CLUSTER, *_SETTINGS)
    unknown = [name for name in values if name not in (*known, ENCODED)]
    if unknown:
        hint = "; name the table by option table" if unknown[0] == "path" else f"; there are {', '.join(known)}"
        raise SourceError(f"regionkeeper has no option {unknown[0]!r}{hint}")
    table, view = values.get("table", ""), values.get("view", "")
    if bool(table) == bool(view):
        raise SourceError(f"give option table, or option view with one of {', '.join(VIEWS)}")
    if view and view not in VIEWS:
        raise SourceError(f"option view: there is no {view!r}; there are {', '.join(VIEWS)}")
    with spoken():
        connection = _connection(values)
    return SourceOptions(
        connection,
        table,
        view,
        values.get("start", ""),
        values.get("stop", ""),
        _threads(values.get("threads", "")),
        _timeout_s(values.get("timeout", "")),
        int(values[ENCODED]) if ENCODED in values else None,
        _is_on("push-filters", values.get("push-filters", "")),
    )


def _is_on(name: str, text: str) -> bool:
    if text.lower() not in ("", "true", "false"):
        raise SourceError(f"option {name}: {text!r} is neither true nor false")
    return text.lower() == "true"


def _threads(text: str) -> int:
    if not text:
        return THREADS
    if not text.isdecimal() or not 1 <= int(text) <= THREADS_MAX:
        raise SourceError(f"option threads: {text!r} is no number from 1 to {THREADS_MAX}")
    return int(text)


def _timeout_s(text: str) -> float:
    try:
        found = float(text) if text else TIMEOUT_S
    except ValueError:
        found = -1.0
    if not 0.0 < found < float("inf"):
        raise SourceError(f"option timeout: {text!r} is no positive number of seconds")
    return found


def _connection(values: Mapping[str, str]) -> SourceCluster:
    """Return the cluster of the options, else that of environment, context and file. Raise CliError, SourceError."""
    given = Globals()
    given.store, given.root, given.data_dir = values.get("store"), values.get("root"), values.get("data-dir")
    given.context, given.cluster_id = values.get("context"), values.get("cluster-id")
    given.store_settings = {name: values[name] for name in _SETTINGS if name in values}
    settings = {name: as_absolute(name, value) for name, value in given.settings().items()}
    for name in _SECRETS:
        value = settings.get(name, "")
        if value and not value.startswith("@"):
            if name in values or value != os.environ.get(variable_of(name)):
                raise SourceError(
                    f"{name} is the credential itself, and Spark shows options in its plans and pages; write @FILE, a"
                    f" file with the credential in its first line, or set {variable_of(name)} for driver and executors"
                )
            del settings[name]  # tasks find it in their own environment
    return SourceCluster(store_hosts(given), root_of(given), str(given.data_path), settings, given.cluster_named())


@contextlib.contextmanager
def opened_cluster(connection: SourceCluster) -> Iterator[Cluster]:
    """Yield the cluster through a session of its own. Raise SourceError."""
    given = connection.globals()
    with spoken():
        process.choose_by(lambda: credentials_of(given))
        with open_cluster(given) as cluster:
            yield cluster


@contextlib.contextmanager
def opened_regions(options: SourceOptions) -> Iterator[RegionClient]:
    """Yield a client of the table's regions. Raise SourceError."""
    given = options.connection.globals()
    with spoken():
        process.choose_by(lambda: credentials_of(given))
        with open_regions(given, options.timeout_s) as client:
            yield client


__all__ = [
    "ENCODED",
    "PUSHDOWN",
    "THREADS",
    "TIMEOUT_S",
    "VIEWS",
    "SourceCluster",
    "SourceOptions",
    "opened_cluster",
    "opened_regions",
    "parse",
]
