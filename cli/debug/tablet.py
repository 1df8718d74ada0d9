"""`rk debug tablet meta|cmeta|log|rows|verify`: a stopped server's files in words.

Exit status: 0 sound, 1 damage or a directory in use, 2 a wrong command line, 4 no such tablet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from cli.common.errors import CliError, ExitStatus, NotFoundError, UsageFaultError
from cli.common.options import Globals, global_options
from cli.common.output import key_range, print_json, print_json_line
from cli.data import shown
from coord.errors import ConfigError, CoordError, ForeignDirectory
from coord.offline.describe import instant
from coord.raft.membership import decode_configuration
from coord.raft.messages import CONFIG, NOOP, NORMAL
from coord.storage.records import LogItem
from coord.storage.shared.items import RecoveredLog, RecoveredSlot
from coord.storage.shared.listing import SlotRecord, list_slot, slots_of
from regionserver.kv.messages import PAGE_ROWS_MAX
from regionserver.tablets.commands import CommandError, CompareAndSet, DeleteRow, KvCommand, PutRow, SealCommand, decode
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.exported_log import read_log
from regionserver.tablets.disk.layout import QUARANTINE, SAVED_LOG, block_path, is_tablet, meta_path, rows_path
from regionserver.tablets.disk.life import DataState
from regionserver.tablets.disk.startup import Outcome, Unreadable
from regionserver.tablets.disk.superblock import Superblock, memory_of
from regionserver.tablets.offline.directory import StoppedServer
from regionserver.tablets.offline.rows import open_rows

_OPERATIONS: Final = {PutRow: "put", DeleteRow: "delete", CompareAndSet: "compare and set"}
#: Operations of a command that are named in a line.
_OPERATIONS_SHOWN: Final = 3
_KINDS: Final = {NORMAL: "command", NOOP: "no-op", CONFIG: "members"}
#: Outcomes of a start that an operator should know of.
_DAMAGE: Final = (Outcome.BURN, Outcome.FAIL)
_RIGHT_DIRECTORY: Final = "Give the directory of one server, as --data-dir rk-data/server-1."


@contextlib.contextmanager
def opened(path: Path) -> Iterator[StoppedServer]:
    """Hold the directory. Print one clear line if it cannot be read."""
    try:
        server = StoppedServer(path)
    except ForeignDirectory as error:
        raise CliError(str(error), "Stop the server first.") from error
    except ConfigError as error:
        raise UsageFaultError(str(error), _RIGHT_DIRECTORY) from error
    except OSError as error:
        raise UsageFaultError(f"{path}: {error.strerror}") from error
    with server:
        try:
            yield server
        except CoordError as error:
            raise CliError(str(error)) from error
        except OSError as error:
            raise CliError(f"{error.filename or path}: {error.strerror}") from error


def _block(server: StoppedServer, tablet: str) -> Superblock:
    """Return a tablet's superblock. Raise NotFoundError, CliError for damage."""
    found = server.files.read_block(tablet) if _has(server, tablet, block_path(tablet)) else None
    if found is None:
        raise NotFoundError(
            f"{server.path} has no superblock of tablet {tablet!r}", "rk debug tablet verify lists every tablet."
        )
    if isinstance(found, Unreadable):
        raise CliError(f"{server.path / block_path(tablet)} is damaged: {found.why}")
    return found


def _has(server: StoppedServer, tablet: str, path: str) -> bool:
    return is_tablet(tablet) and (server.path / path).is_file()


def _lines(fields: dict[str, Any]) -> None:
    width = max(map(len, fields))
    for name, value in fields.items():
        if value not in ("", None):
            click.echo(f"{name:<{width}}  {value}")


# --- meta -------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("tablet", metavar="TABLET")
@global_options
@click.pass_obj
def meta(given: Globals, tablet: str) -> None:
    """Show the superblock of a tablet."""
    with opened(given.data_path) as server:
        block = _block(server, tablet)
    if given.json:
        print_json(block)
        return
    memory = block.memory
    _lines(
        {
            "tablet": block.tablet,
            "table": block.table,
            "range": key_range(block.start_key, block.end_key),
            "hash buckets": block.hash_buckets or "",
            "server": block.server,
            "data state": block.data_state,
            "wanted": block.run_intent if block.data_state is DataState.READY else "",
            "number": f"{block.number or 'unknown'}, the highest ever here {block.highest_number or 'unknown'}",
            "generation": block.generation,
            "slot": block.slot,
            "memory": f"term {memory.term}, vote for {memory.vote or 'nobody'}, last entry"
            f" {memory.last_term}/{memory.last_index}"
            if memory
            else "LOST: the number is burned"
            if block.is_lost
            else "",
            "quarantine": block.quarantine,
            "copied from": block.copied_from,
            "reason": block.reason,
            "created": instant(block.created_ms),
            "changed": instant(block.changed_ms),
        }
    )


# --- cmeta ------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("tablet", metavar="TABLET")
@global_options
@click.pass_obj
def cmeta(given: Globals, tablet: str) -> None:
    """The consensus metadata of a tablet: number, configuration, term and vote.

    While the replica is READY, term and vote of the shared log count; they are shown as well.
    """
    with opened(given.data_path) as server:
        found = server.files.read_meta(tablet) if _has(server, tablet, meta_path(tablet)) else None
        if found is None:
            raise NotFoundError(f"{server.path} has no consensus metadata of tablet {tablet!r}")
        if isinstance(found, Unreadable):
            raise CliError(f"{server.path / meta_path(tablet)} is damaged: {found.why}")
        block = server.files.read_block(tablet) if _has(server, tablet, block_path(tablet)) else None
        promise = _promise(server, block, found)
    members = found.members()
    fields: dict[str, Any] = {
        "tablet": found.tablet,
        "number": found.number,
        "config_term": found.config_term,
        "config_index": found.config_index,
        "voters": members.voters,
        "pre_voters": members.pre_voters,
        "learners": members.learners,
        "attachment": members.attachment.decode("utf-8", "backslashreplace"),
        "term": found.term,
        "vote": found.vote,
        "counts": promise,
    }
    if given.json:
        print_json(fields)
        return
    _lines(
        {
            "tablet": found.tablet,
            "number": found.number,
            "configuration": f"{found.config_term}/{found.config_index}: {members!r}",
            "attachment": fields["attachment"],
            "written": f"term {found.term}, vote for {found.vote or 'nobody'}",
            "counts": f"term {promise['term']}, vote for {promise['vote'] or 'nobody'} ({promise['from']})"
            if promise
            else "nothing: the memory is lost",
        }
    )


def _promise(server: StoppedServer, block: Superblock | Unreadable | None, found: ConsensusMeta) -> dict[str, Any]:
    """Return term and vote that count, and where they are; empty if nothing counts."""
    if not isinstance(block, Superblock):
        return {}
    if block.data_state is not DataState.READY:
        memory = memory_of(block, found)
        source = "the tombstone" if memory == block.memory else "the consensus metadata"
        return {"term": memory.term, "vote": memory.vote, "from": source} if memory else {}
    slot = server.log().slots.get(block.slot if block.slot is not None else -1)
    if slot is None or slot.damage:
        return {}
    if slot.hard_state.term < found.term:
        return {"term": found.term, "vote": found.vote, "from": "the consensus metadata"}
    return {"term": slot.hard_state.term, "vote": slot.hard_state.vote, "from": "the shared log"}


# --- log --------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("tablet", metavar="TABLET")
@click.option("--from", "first", type=int, default=0, metavar="INDEX", help="Entries from this index on.")
@click.option("--to", "last", type=int, default=None, metavar="INDEX", help="Entries up to this index.")
@click.option("--records", is_flag=True, help="List what each record of the log holds of the tablet, not the entries.")
@global_options
@click.pass_obj
def log(given: Globals, tablet: str, first: int, last: int | None, records: bool) -> int:
    """The tablet's entries in the shared log; for a removed replica, the entries of its exported log.

    \b
    An entry is written term/index. --json prints one document per line: the slot, then each entry.
    """
    if last is not None and last < first:
        raise UsageFaultError(f"--from {first} is greater than --to {last}")
    with opened(given.data_path) as server:
        shared = server.log()
        slots = {number: shared.slots[number] for number in slots_of(shared, tablet)}
        if slots:
            for number, slot in slots.items():
                _print_slot(number, slot, as_json=given.json)
                if records:
                    _print_records(server, number, as_json=given.json)
                else:
                    _print_entries(slot.entries, first, last, as_json=given.json)
                if slot.damage and not given.json:
                    click.echo(f"DAMAGE  {slot.damage}")
            return ExitStatus.REFUSED if any(slot.damage for slot in slots.values()) else 0
        _print_export(server, shared, tablet, first, last, as_json=given.json)
    return 0


def _print_slot(number: int, slot: RecoveredSlot, *, as_json: bool) -> None:
    fields = {
        "slot": number,
        "tablet": slot.tablet,
        "number": slot.number,
        "generation": slot.generation,
        "term": slot.hard_state.term,
        "vote": slot.hard_state.vote,
        "floor": [slot.floor.term, slot.floor.index],
        "last": [slot.last.term, slot.last.index],
        "damage": slot.damage,
    }
    if as_json:
        print_json_line(fields)
    else:
        click.echo(
            f"slot {number}, generation {slot.generation}, member {slot.number}: term {slot.hard_state.term}, vote for"
            f" {slot.hard_state.vote or 'nobody'}, entries after {slot.floor.term}/{slot.floor.index} up to"
            f" {slot.last.term}/{slot.last.index}"
        )


def _print_records(server: StoppedServer, slot: int, *, as_json: bool) -> None:
    for part in list_slot(server.disk, slot):
        if as_json:
            print_json_line(part.fields())
        elif isinstance(part, SlotRecord):
            click.echo(f"{Path(part.path).name}:{part.offset:<10} {part.text()}")
        else:
            click.echo(f"LOST  {part.text()}")


def _print_export(
    server: StoppedServer, shared: RecoveredLog, tablet: str, first: int, last: int | None, *, as_json: bool
) -> None:
    """Print the exported log of a replica that was removed."""
    block = _block(server, tablet)
    path = f"{block.quarantine}/{SAVED_LOG}"
    if not block.quarantine or not (server.path / path).is_file():
        raise NotFoundError(
            f"{server.path} has no log of tablet {tablet}: no slot among {len(shared.slots)}, nothing in {QUARANTINE}"
        )
    found = read_log(server.disk, path)
    if as_json:
        print_json_line(
            {
                "file": str(server.path / path),
                "term": found.term,
                "vote": found.vote,
                "floor": [found.base_term, found.base_index],
                "last": [found.last_term(), found.last_index()],
            }
        )
    else:
        click.echo(
            f"{server.path / path}: term {found.term}, vote for {found.vote or 'nobody'}, entries after"
            f" {found.base_term}/{found.base_index} up to {found.last_term()}/{found.last_index()}"
        )
    _print_entries(found.entries, first, last, as_json=as_json)


def _print_entries(entries: list[LogItem], first: int, last: int | None, *, as_json: bool) -> None:
    for item in entries:
        if item.index < first or (last is not None and item.index > last):
            continue
        fields = entry_fields(item)
        if as_json:
            print_json_line(fields)
            continue
        what = fields.get("unreadable") or fields.get("members") or _command_line(fields.get("command"))
        click.echo(f"  {item.term}/{item.index}  {fields['kind']}  {len(item.data)} B  {what}".rstrip())


def entry_fields(item: LogItem) -> dict[str, Any]:
    """Return one entry in words. An entry that cannot be read has the reason in `unreadable`."""
    fields: dict[str, Any] = {
        "index": item.index,
        "term": item.term,
        "kind": _KINDS.get(item.kind, f"kind {item.kind}"),
        "bytes": len(item.data),
    }
    try:
        if item.kind == CONFIG:
            fields["members"] = repr(decode_configuration(item.data))
        elif item.kind == NORMAL:
            fields["command"] = _command_fields(decode(item.data))
    except (ValueError, CommandError) as error:
        fields["unreadable"] = str(error)
    return fields


def _command_fields(command: KvCommand | SealCommand) -> dict[str, Any]:
    """Return a client's request without its values, or an entry about the tablet's seal."""
    if isinstance(command, SealCommand):
        return {"seal_of": command.resharding, "is_wanted": command.is_wanted, "time_ms": command.time_ms}
    operations = []
    for one in command.operations:
        size = len(one.value) if isinstance(one, PutRow | CompareAndSet) and one.value is not None else None
        operations.append({"operation": _OPERATIONS[type(one)], "key": one.key, "bytes": size})
    return {
        "writer": command.writer,
        "number": command.number,
        "done_below": command.done_below,
        "time_ms": command.time_ms,
        "operations": operations,
    }


def _command_line(command: dict[str, Any] | None) -> str:
    if command is None:
        return ""
    if "seal_of" in command:
        what = "seals the tablet for" if command["is_wanted"] else "takes the seal away of"
        return f"{instant(command['time_ms'])} {what} split {command['seal_of']}"
    named = [f"{one['operation']} {one['key']!r}" for one in command["operations"][:_OPERATIONS_SHOWN]]
    more = len(command["operations"]) - len(named)
    rest = f" and {more} more" if more else ""
    return f"{instant(command['time_ms'])} write {command['number']} of {command['writer']}: {', '.join(named)}{rest}"


# --- rows -------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("tablet", metavar="TABLET")
@click.option("--from", "start", default="", metavar="KEY", help="Rows from this key on.")
@click.option("--to", "end", default="", metavar="KEY", help="Rows before this key.")
@click.option(
    "--limit", type=click.IntRange(0, PAGE_ROWS_MAX), default=20, show_default=True, help="Most rows to list."
)
@click.option("--check", "is_checked", is_flag=True, help="Read every row, and compare with count and digest.")
@global_options
@click.pass_obj
def rows(given: Globals, tablet: str, start: str, end: str, limit: int, is_checked: bool) -> int:
    """The tablet's rows, and the state that they have.

    \b
    If the machine has booted since the server ran, the rows are those of the steady point, in a temporary copy; the
    server applies the log after the point when it starts. --json prints one document per line: the state, then rows.
    """
    with opened(given.data_path) as server:
        block = _block(server, tablet)
        if block.data_state is not DataState.READY:
            former = f"; those of the former replica are in {block.quarantine}" if block.quarantine else ""
            raise NotFoundError(f"tablet {tablet} is {block.data_state} on this server and has no rows{former}")
        if not _has(server, tablet, rows_path(tablet, block.generation)):
            raise NotFoundError(f"{server.path} has no rows of tablet {tablet}: the log has all, or they are lost")
        with open_rows(server.path, tablet, block.generation) as found:
            state = found.state()
            counted = found.recount() if is_checked else state
            listed = found.page(start, end, limit) if limit else []
            point = found.point
            is_set_back = found.is_set_back
    fields = {
        "tablet": tablet,
        "generation": block.generation,
        "applied": list(state.applied[::-1]),
        "rows": state.rows,
        "bytes": state.size,
        "digest": state.digest.hex(),
        "steady": [point.applied_term, point.applied_index] if point else None,
        "set_back": is_set_back,
        "sound": counted == state,
    }
    if given.json:
        print_json_line(fields)
        for key, value in listed:
            print_json_line({"key": key, "value": shown(value)})
    else:
        _print_rows(fields, listed)
        if counted != state:
            click.echo(f"DAMAGE  {counted.rows} rows of {counted.size} bytes, digest {counted.digest.hex()}, were read")
    return 0 if counted == state else ExitStatus.REFUSED


def _print_rows(fields: dict[str, Any], listed: list[tuple[str, bytes]]) -> None:
    steady = fields["steady"]
    _lines(
        {
            "tablet": f"{fields['tablet']}, generation {fields['generation']}",
            "applied": "/".join(map(str, fields["applied"])),
            "steady point": "/".join(map(str, steady)) if steady else "none",
            "set back": "to the steady point: the machine has booted since" if fields["set_back"] else "",
            "rows": f"{fields['rows']} of {fields['bytes']} bytes, digest {fields['digest']}",
        }
    )
    for key, value in listed:
        click.echo(f"{key}\t{shown(value)}")


# --- verify -----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("tablet", metavar="[TABLET]", required=False, default="")
@global_options
@click.pass_obj
def verify(given: Globals, tablet: str) -> int:
    """Check the server's identity, and superblock, consensus metadata, log and steady point of one tablet or of all.

    Print what a start would do.

    \b
    Nothing is written. Exit status: 0 sound, 1 damage.
    """
    with opened(given.data_path) as server:
        shared = server.log()
        survey = server.survey(shared)
        found = [one for one in survey if tablet in ("", one.tablet)]
        if not found and tablet:
            raise NotFoundError(f"{server.path} has nothing of tablet {tablet!r}")
        decisions = [server.decide(one) for one in found]
        refusal = server.refusal(survey)
    is_sound = not shared.damage and not refusal and not any(one.row.outcome in _DAMAGE for one in decisions)
    if given.json:
        print_json(
            {
                "sound": is_sound,
                "refusal": refusal,
                "log": {"slots": len(shared.slots), "cut": shared.cut, "damage": shared.damage},
                "tablets": [
                    {
                        "tablet": one.tablet,
                        "run": one.run,
                        "then": one.row.outcome,
                        "why": one.row.why,
                        "story": one.story,
                        "effects": len(one.effects),
                    }
                    for one in decisions
                ],
            }
        )
        return 0 if is_sound else ExitStatus.REFUSED
    if refusal:
        click.echo(f"DAMAGE  a server does not start here: {refusal}")
    for line in shared.damage:
        click.echo(f"DAMAGE  {line}")
    if shared.cut:
        click.echo(f"note    {shared.cut}")
    for one in decisions:
        click.echo(f"{one.tablet}  {one.run or 'absent'}  at a start: {one.row.outcome}")
        if one.story:
            click.echo(f"    {one.story}")
    click.echo("sound" if is_sound else "damaged")
    return 0 if is_sound else ExitStatus.REFUSED
