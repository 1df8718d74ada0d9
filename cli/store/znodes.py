"""`rk coord ls|get|stat`: show znodes of the store. Nothing is changed."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from cli.common import output
from cli.common.asking.store import open_named_store, rights_of, store_hosts
from cli.common.connect import READ_TIMEOUT_S
from cli.common.errors import NotFoundError, UsageFaultError
from cli.common.options import Globals, global_options
from cli.common.waiting import limit_s, waiting

#: Fields of a stat, by kazoo's names and in ZooKeeper's order, with those that are times.
_FIELDS: Final = (
    "czxid", "ctime", "mzxid", "mtime", "pzxid", "cversion", "version", "aversion", "ephemeralOwner", "dataLength",
    "numChildren",
)  # fmt: skip
_TIMES: Final = ("ctime", "mtime")
_HEX: Final = ("czxid", "mzxid", "pzxid", "ephemeralOwner")


@contextlib.contextmanager
def _looking(given: Globals, path: str) -> Iterator[KazooClient]:
    """Yield a session; errors about `path` become one clear line."""
    if not path.startswith("/") or (path != "/" and path.endswith("/")):
        raise UsageFaultError(f"{path!r} is no path of a znode", "A path begins with / and does not end with it.")
    with open_named_store(given, rights_of(given)) as client:
        try:
            with waiting(f"the store at {store_hosts(given)} to answer", limit_s(READ_TIMEOUT_S)):
                yield client
        except NoNodeError as error:
            parent = path.rpartition("/")[0] or "/"
            raise NotFoundError(f"there is no znode {path}", f"`rk coord ls {parent}` lists its neighbors.") from error


@click.command()
@click.argument("path", default="/")
@click.option("--long", "-l", "is_long", is_flag=True, help="With version, bytes and number of children of each.")
@global_options
@click.pass_obj
def ls(given: Globals, path: str, is_long: bool) -> None:
    """List the children of the znode PATH, sorted by name."""
    with _looking(given, path) as client:
        names = sorted(client.get_children(path))
        prefix = path.rstrip("/")
        waiting = [(name, client.exists_async(f"{prefix}/{name}")) for name in names] if is_long or given.json else []
        found = [(name, stat) for name, one in waiting if (stat := one.get()) is not None]
    if given.json:
        output.print_json({"path": path, "children": [{"name": name, "stat": _as_dict(stat)} for name, stat in found]})
    elif is_long:
        rows = [
            (name, stat.version, stat.dataLength, stat.numChildren, "yes" if stat.ephemeralOwner else "")
            for name, stat in found
        ]
        output.console().print(output.table("", ["name", "#version", "#bytes", "#children", "ephemeral"], rows))
    else:
        for name in names:
            click.echo(name)


@click.command()
@click.argument("path")
@global_options
@click.pass_obj
def get(given: Globals, path: str) -> None:
    """Print the data of the znode PATH: unchanged into a pipe, with escapes on a terminal; base64 in JSON."""
    with _looking(given, path) as client:
        data, stat = client.get(path)
    if given.json:
        try:
            value = {"text": data.decode()}
        except UnicodeDecodeError:
            value = {"base64": base64.b64encode(data).decode()}
        output.print_json({"path": path, **value, "stat": _as_dict(stat)})
        return
    if sys.stdout.isatty():
        click.echo(data.decode(errors="surrogateescape"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


@click.command()
@click.argument("path")
@global_options
@click.pass_obj
def stat(given: Globals, path: str) -> None:
    """Print the stat of the znode PATH: zxids, times, versions, owner, sizes."""
    with _looking(given, path) as client:
        found = client.exists(path)
        if found is None:
            raise NoNodeError
    if given.json:
        output.print_json({"path": path, "stat": _as_dict(found)})
        return
    for name in _FIELDS:
        click.echo(f"{name:<15} {_shown(name, getattr(found, name))}")


def _shown(name: str, value: int) -> str:
    if name in _HEX:
        return f"0x{value:x}"
    if name in _TIMES:
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{value % 1000:03d}Z"
    return str(value)


def _as_dict(found: Any) -> dict[str, int]:
    return {name: getattr(found, name) for name in _FIELDS}
