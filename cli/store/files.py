"""`rk coord dump-log|dump-snapshot|verify`: print and check the files of a stopped store node.

Exit status: 0 undamaged (and equal), 1 damage, a difference or a directory in use, 2 a wrong command line.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress as Bar

from cli.common.errors import CliError, ExitStatus, UsageFaultError
from cli.common.options import Globals, global_options
from cli.common.output import console, count, print_json, print_json_line, size
from coord.errors import ConfigError, ForeignDirectory, StorageError, UnsupportedLevel
from coord.offline import describe
from coord.offline.backup import BackupReader, is_backup
from coord.offline.directory import Progress, StoppedDirectory
from coord.offline.directory import ReadOnlyDisk as _Disk
from coord.offline.verify import Comparison, DirectoryReport, check, compare
from coord.raft.membership import decode_configuration
from coord.storage.records import BaseItem, HardStateItem, LogItem, LogRecord, SegmentItem
from coord.storage.snapshot import MAGIC, SnapshotReader
from coord.tree.machine import StateMachine
from coord.tree.node import STAT, Znode

_KINDS = ("persistent", "ephemeral", "container", "ttl")
_STAT_NAMES = (
    *("czxid", "mzxid", "ctime", "mtime", "version", "cversion", "aversion"),
    *("ephemeral_owner", "data_length", "num_children", "pzxid"),
)
_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)
_ANYTHING = click.Path(path_type=Path, exists=True)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[StoppedDirectory]:
    """Yield the opened directory. Raise UsageFaultError if it cannot be read, CliError if a node uses it."""
    try:
        directory = StoppedDirectory(path)
    except ForeignDirectory as error:
        raise CliError(str(error), "Stop the node first, or copy the directory and read the copy.") from error
    except (ConfigError, OSError) as error:
        raise UsageFaultError(str(error)) from error
    with directory:
        yield directory


@contextlib.contextmanager
def damage_as_errors() -> Iterator[None]:
    """Report damage to a file in one line that names file and offset; exit status 1."""
    try:
        yield
    except StorageError as error:
        raise CliError(str(error), "rk coord verify DIR checks everything there is.") from error
    except UnsupportedLevel as error:
        raise CliError(str(error)) from error


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None  # noqa: ARG005
        return
    with Bar(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=max(1, total))


# --- dump-log --------------------------------------------------------------------------------------------------------


@click.command("dump-log")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--from", "first", type=int, default=0, metavar="INDEX", help="Entries from this index on.")
@click.option("--to", "last", type=int, default=None, metavar="INDEX", help="Entries up to this index.")
@global_options
@click.pass_obj
def dump_log(given: Globals, directory: Path, first: int, last: int | None) -> None:
    """Print the log of a stopped node: every entry with its commands, and every other record.

    \b
    An entry is written term/index. A later entry with the same index replaces that entry and every entry after it.
    """
    if last is not None and last < first:
        raise UsageFaultError(f"--from {first} is greater than --to {last}")
    with opened(directory) as found, damage_as_errors():
        log = found.log()
        printer = _LogPrinter(first, last, is_json=given.json)
        for where, record in log.records():
            printer.record(where, record)
        if not printer.entries:
            click.echo(f"rk: no such entries: {printer.range_text()}", err=True)
        if log.cut:
            click.echo(f"rk: {log.cut}", err=True)


class _LogPrinter:
    """Prints records as lines, or as one JSON document per item."""

    def __init__(self, first: int, last: int | None, *, is_json: bool) -> None:
        self._first = first
        self._last = last
        self._is_json = is_json
        self._where = ""
        self._first_index = self._last_index = 0
        #: Number of printed entries.
        self.entries = 0

    def range_text(self) -> str:
        """Return the range of entries that the log holds."""
        return f"the log holds {self._first_index} to {self._last_index}" if self._first_index else "the log holds none"

    def record(self, where: str, record: LogRecord) -> None:
        """Print the items of `record` that are in the range."""
        for item in record.items:
            if isinstance(item, LogItem):
                self._first_index = self._first_index or item.index
                if item.index >= self._first and (self._last is None or item.index <= self._last):
                    self.entries += 1
                    self._print(where, record, self._entry(item))
                self._last_index = item.index
            else:
                self._print(where, record, _marker(item))
                if isinstance(item, BaseItem):
                    self._last_index = item.index

    def _entry(self, item: LogItem) -> dict[str, Any]:
        fields = {"item": "entry", **describe.entry_fields(item)}
        if 0 < item.index <= self._last_index:
            fields["replaces_to"] = self._last_index
        return fields

    def _print(self, where: str, record: LogRecord, fields: dict[str, Any]) -> None:
        if self._is_json:
            print_json_line({"file": where, "offset": record.offset, "record": record.sequence, **fields})
            return
        if where != self._where:
            self._where = where
            click.echo(where)
        if fields["item"] != "entry":
            click.echo(f"{record.offset:>10}  {fields['line']}")
            return
        replaced = f" (replaces {fields['index']} to {fields['replaces_to']})" if "replaces_to" in fields else ""
        click.echo(f"{record.offset:>10}  {describe.entry_line(fields)}{replaced}")
        for command in fields.get("commands", ()):
            click.echo(f"{'':12}{describe.command_line(command)}")


def _marker(item: HardStateItem | BaseItem | SegmentItem) -> dict[str, Any]:
    """Return the fields of a log record that is not an entry; `line` is for people."""
    if isinstance(item, HardStateItem):
        return {"item": "hard state", "term": item.term, "vote": item.vote,
                "line": f"term {item.term}, vote for {item.vote or 'nobody'}"}  # fmt: skip
    if isinstance(item, BaseItem):
        return {"item": "base", "term": item.term, "index": item.index,
                "line": f"a snapshot replaces all entries up to {item.term}/{item.index}"}  # fmt: skip
    return {"item": "segment", "number": item.number, "term": item.term, "vote": item.vote,
            "line": f"segment {item.number}: term {item.term}, vote for {item.vote or 'nobody'}, "
                    f"log up to {item.last_term}/{item.last_index}"}  # fmt: skip


# --- dump-snapshot ---------------------------------------------------------------------------------------------------


@click.command("dump-snapshot")
@click.argument("path", metavar="FILE|DIR", type=_ANYTHING)
@click.option("--tree", is_flag=True, help="List every znode.")
@click.option("--path", "below", metavar="ZNODE", default="", help="List this znode and all below it, with its data.")
@global_options
@click.pass_obj
def dump_snapshot(given: Globals, path: Path, tree: bool, below: str) -> None:
    """Print the content of a snapshot file, of a backup, or of the newest snapshot of a stopped node.

    \b
    Without options, print only the totals of the snapshot. --json prints one document per line.
    """
    with damage_as_errors():
        facts, machine = _read_state(path)
    _print_fields(facts, is_json=given.json)
    if not tree and not below:
        return
    prefix = below.rstrip("/").encode()
    paths = [p for p in machine.tree.nodes if not below or p == (prefix or b"/") or p.startswith(prefix + b"/")]
    if below and not paths:
        raise CliError(f"{path} has no znode {below}")
    for each in sorted(paths):
        _print_znode(each, machine.tree.nodes[each], with_data=bool(below), is_json=given.json)


def _read_state(path: Path) -> tuple[dict[str, Any], StateMachine]:
    """Return the totals of the snapshot, and its state."""
    if path.is_dir():
        with opened(path) as found:
            names = found.snapshots()
            if not names:
                raise CliError(f"{path} has no snapshot", "rk coord dump-log shows its log.")
            return _load(found.open_snapshot(names[-1]), {"file": str(path / "snap" / names[-1])})
    if is_backup(path):
        with BackupReader(path) as backup:
            return _load(backup.snapshot(), {"file": str(path), "backup": backup.manifest.fields()})
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise CliError(f"{path} is neither a snapshot nor a backup of a store")
    return _load(SnapshotReader(_Disk(path.parent), path.name), {"file": str(path)})


def _load(reader: SnapshotReader, facts: dict[str, Any]) -> tuple[dict[str, Any], StateMachine]:
    try:
        machine = StateMachine.restore(reader.chunks())
        facts["bytes"] = reader.size()
    finally:
        reader.close()
    meta = reader.meta
    facts.update(
        index=meta.index,
        term=meta.term,
        zxid=machine.last_zxid,
        digest=f"{machine.digest():016x}",
        members=repr(decode_configuration(meta.config)) if meta.config else "",
        level=machine.level,
        znodes=len(machine.tree.nodes),
        ephemerals=machine.tree.ephemeral_count,
        data_bytes=machine.tree.data_bytes,
        sessions=len(machine.sessions),
        time_ms=machine.applied_time_ms,
    )
    return facts, machine


def _print_fields(facts: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        print_json_line(facts)
        return
    for name, value in facts.items():
        if name == "time_ms":
            value = describe.instant(value)
        elif name == "backup":
            value = " ".join(f"{key}={part}" for key, part in value.items())
        click.echo(f"{name:<12}{value}")


def _print_znode(path: bytes, node: Znode, *, with_data: bool, is_json: bool) -> None:
    stat = dict(zip(_STAT_NAMES, STAT.unpack(node.stat()), strict=True))
    if is_json:
        fields: dict[str, Any] = {"path": describe.text(path), "kind": _KINDS[node.kind], **stat}
        if node.ttl_ms:
            fields["ttl_ms"] = node.ttl_ms
        if with_data:
            fields["data"] = None if node.data is None else node.data.hex()
        print_json_line(fields)
        return
    owner = f" of {stat['ephemeral_owner']:#x}" if node.kind == 1 else ""
    click.echo(
        f"{describe.text(path)}  {_KINDS[node.kind]}{owner} version {stat['version']} zxid {stat['mzxid']}"
        f" {stat['data_length']} B {stat['num_children']} children"
    )
    if with_data and node.data:
        click.echo(f"    {node.data!r}"[:2000])


# --- verify ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("directories", metavar="DIR…", nargs=-1, required=True, type=_DIRECTORY)
@global_options
@click.pass_obj
def verify(given: Globals, directories: tuple[Path, ...]) -> int:
    """Check the data directories of stopped nodes, and compare them if there are several.

    \b
    Reads every snapshot and every record of the log, replays the log over the oldest snapshot and compares with the
    newer ones. With more than one directory, the first is compared with each of the others at every common index.
    Nothing is written. Exit status: 0 undamaged and equal, 1 damage or a difference.
    """
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(opened(path)) for path in directories]
        with progress_bar() as progress, damage_as_errors():
            reports = [check(directory, progress) for directory in found]
            comparisons = (
                [compare(reports[0], other, progress) for other in reports[1:]]
                if all(report.is_sound() for report in reports)
                else []
            )
    is_good = all(report.is_sound() for report in reports) and not any(c.difference for c in comparisons)
    if given.json:
        pairs = zip(directories[1:], comparisons, strict=False)
        print_json(
            {
                "sound": all(report.is_sound() for report in reports),
                "directories": [_report_fields(report) for report in reports],
                "comparisons": [_comparison_fields(directories[0], other, c) for other, c in pairs],
            }
        )
    else:
        for report in reports:
            _print_report(report)
        for other, comparison in zip(directories[1:], comparisons, strict=False):
            _print_comparison(directories[0], other, comparison)
    return 0 if is_good else ExitStatus.REFUSED


def _report_fields(report: DirectoryReport) -> dict[str, Any]:
    log = report.log
    return {
        "directory": str(report.directory.path),
        "node_id": report.node_id,
        "cluster": report.cluster,
        "sound": report.is_sound(),
        "snapshots": [{**vars(fact), "digest": f"{fact.digest:016x}"} for fact in report.snapshots],
        "log": {
            "segments": report.segments,
            "bytes": report.log_bytes,
            "base_index": log.base_index,
            "last_index": log.last_index(),
            "last_term": log.last_term(),
            "term": log.term,
            "vote": log.vote,
        },
        "index": report.index,
        "zxid": report.zxid,
        "digest": f"{report.digest:016x}",
        "znodes": report.znodes,
        "sessions": report.sessions,
        "damage": report.damage,
        "notes": report.notes,
    }


def _print_report(report: DirectoryReport) -> None:
    log = report.log
    click.echo(f"{report.directory.path}: node {report.node_id or '?'} of cluster {report.cluster or '?'}")
    for fact in report.snapshots:
        click.echo(
            f"  snapshot  {fact.term}/{fact.index} zxid {fact.zxid} digest {fact.digest:016x}"
            f" {count(fact.znodes, 'znode')} {count(fact.sessions, 'session')}"
        )
    click.echo(
        f"  log       after {log.base_index} to {log.last_term()}/{log.last_index()}, term {log.term}, vote for"
        f" {log.vote or 'nobody'}, {count(report.segments, 'segment')}, {size(report.log_bytes)}"
    )
    if report.is_sound():
        click.echo(
            f"  state     index {report.index} zxid {report.zxid} digest {report.digest:016x}"
            f" {count(report.znodes, 'znode')} {count(report.sessions, 'session')}"
        )
    for line in report.notes:
        click.echo(f"  note      {line}")
    for line in report.damage:
        click.echo(f"  DAMAGE    {line}")
    click.echo(f"  {'sound' if report.is_sound() else 'damaged'}")


def _comparison_fields(first: Path, second: Path, comparison: Comparison) -> dict[str, Any]:
    fields = {**vars(comparison), "digest": f"{comparison.digest:016x}"}
    return {"first": str(first), "second": str(second), "agree": not comparison.difference, **fields}


def _print_comparison(first: Path, second: Path, comparison: Comparison) -> None:
    span = f"from index {comparison.first_index} to {comparison.last_index}"
    if comparison.difference:
        click.echo(f"{first} and {second} DIFFER: {comparison.difference}")
    else:
        click.echo(f"{first} and {second} agree {span}: zxid {comparison.zxid} digest {comparison.digest:016x}")
    for line in comparison.notes:
        click.echo(f"  note      {line}")
