"""`rk fsck`: compare the store with every server's own list. `--fix` takes only legal steps, and shows them first."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import click
import msgspec
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.asking.servers import ask_server, ask_servers
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, ExitStatus, UsageFaultError
from cli.common.names import Names
from cli.common.options import Globals, NumberRange, global_options
from cli.diagnose.access_lists import WantedLists, check_access, set_access
from cli.diagnose.fsck_deep import Deep, progress, read_rows, summary
from cli.diagnose.past import last_check
from cli.tablets.former import name_former
from cli.tablets.matrix import show_tablets, tablets_found
from cli.tablets.reading import read_replicas
from regions import messages
from regions.cluster.history import CorruptSegment, unpack
from regions.diagnose.fsck import ClusterView, Finding, Fix, FixKind, FoundTransition, confirmed
from regions.diagnose.fsck_tablets import check_all
from regions.records.model import RegionState, ServerRecord, TableState
from regions.records.replica_key import replica_key
from regions.records.znodes import (
    CorruptZnode,
    decode_active,
    decode_alarm,
    decode_balancer,
    decode_bar,
    decode_cluster,
    decode_directory,
    decode_epoch,
    decode_fence,
    decode_intents,
    decode_master,
    decode_moves,
    decode_name,
    decode_plan,
    decode_region,
    decode_request,
    decode_resharding,
    decode_run,
    decode_server,
    decode_table,
    decode_transition,
    encode,
)
from regions.transitions import states
from regions.transitions.states import Actor, Cause

T = TypeVar("T")

#: Pause between the two reads: longer than a step takes in a healthy cluster.
_PAUSE_S: Final = 1.0
_SERVER_TIMEOUT_S: Final = 2.0
#: Findings of one problem that are printed: a dead server alone leaves one for each of its tablets.
FINDINGS_SHOWN: Final = 20
#: Replicas in transition whose errors are printed.
MOVING_SHOWN: Final = 5


class FixResult(msgspec.Struct):
    """Result of one fix."""

    subject: str
    preview: str
    done: bool
    detail: str = ""
    #: With --dry-run: the step would not be done.
    is_refused: bool = False


class Moving(msgspec.Struct):
    """A replica of a shared region that is in transition and not parked, and so not judged yet."""

    replica: str
    state: str
    attempt: int
    last_error: str


@click.command(epilog="Exit status: 0 no errors (warnings apart), 1 errors, or a fix failed.")
@click.option("--fix", is_flag=True, help="Take the legal steps that would help; shows them and asks first.")
@click.option("--yes", is_flag=True, help="Do not ask. Only with --fix.")
@click.option("--dry-run", is_flag=True, help="With --fix: show each step as it would be taken, and take none.")
@click.option("--deep", is_flag=True, help="Let the servers check every row, and report damaged rows.")
@click.option(
    "--rate",
    type=NumberRange(min=0),
    default=50.0,
    show_default=True,
    help="With --deep: megabytes per second and server; 0 for no limit.",
)
@global_options
@click.pass_obj
def fsck(given: Globals, fix: bool, yes: bool, dry_run: bool, deep: bool, rate: float) -> int:
    """Find holes and overlaps in the key space, regions open twice or nowhere, stray transitions, and tablets that lack
    replicas or a leader.

    Everything is read twice, so a step in progress is not a finding: the output only counts regions in transition, with
    the errors of those that fail to open. Works without an active master. Nothing is changed without --fix, and then
    only by steps of docs/transitions.md: fenced compare-and-sets, or requests to the master. The findings are noted in
    the store for the live page.

    For each tablet that is not HEALTHY, a matrix shows every replica's own view of the configuration: V voter, P
    PRE_VOTER, L learner, * the leader, - no member, ? unknown.
    """
    if yes and not fix:
        raise UsageFaultError("--yes without --fix does nothing", "rk fsck --fix --yes")
    if dry_run and not fix:
        raise UsageFaultError("--dry-run without --fix does nothing", "rk fsck --fix --dry-run")
    began_s = time.monotonic()
    with open_cluster(given) as cluster:
        view = read_view(cluster)
        findings, tablets = check_all(view)
        if findings:
            time.sleep(_PAUSE_S)
            view = read_view(cluster)
            later, tablets = check_all(view)
            findings = confirmed(findings, later)
        show = progress()
        findings += check_access(cluster, show)
        found = tablets_found(tablets)
        read: Deep | None = None
        if deep:
            read, damaged = read_rows(view, rate, show)
            show("")
            findings += damaged
        names = Names(cluster.servers(), cluster.local)
        cluster.unreadable.clear()  # they are findings
        if not given.json:
            name_former(cluster, names, members_in(view))
            show_tablets(found, names, output.console())
            show_findings(findings, names, output.console())
            show_moving(moving(view), names, output.console())
            for line in summary(read) if read is not None else ():
                click.echo(line)
        done: list[FixResult] = []
        if fix:
            done = _fix(given, cluster, findings, ask=not yes and not dry_run, dry_run=dry_run)
        fixed = 0 if dry_run else sum(one.done for one in done)
        trouble = last_check.keep(cluster, findings, began_s=began_s, deep=deep, fixed=fixed)
        if trouble:
            click.echo(f"the findings could not be noted for the live page: {trouble}", err=True)
    if given.json:
        report: dict[str, object] = {
            "findings": findings,
            "fixes": done,
            "tablets": found,
            "in_transition": moving(view),
        }
        output.print_json(report | ({"deep": read} if read is not None else {}))
    damage = [one for one in findings if not one.is_warning]
    damage_unread = read is not None and bool(read.unread)
    is_failed = any(not one.done for one in done) and not dry_run
    return ExitStatus.REFUSED if damage or damage_unread or is_failed else ExitStatus.OK


def members_in(view: ClusterView) -> set[str]:
    """Return the uuids of the servers of all tablets' members."""
    return {member.uuid for regions in view.regions.values() for one in regions for member in one.members}


def read_view(cluster: Cluster) -> ClusterView:
    """Read the store, then the lists of every live server, so the store is never older than the lists."""
    layout = cluster.layout
    view = ClusterView(has_master=_has_master(cluster), root=layout.root, now_ms=int(time.time() * 1000))

    def decoded(read: Callable[[bytes, str], T], data: bytes, path: str) -> T | None:
        try:
            return read(data, path)
        except CorruptZnode as error:
            view.unreadable.append((path, error.reason))
            return None

    for path, data, version in _read(cluster, cluster.transitions_left()):
        view.transitions.append(FoundTransition(path, decoded(decode_transition, data, path), version))
    for name, data in cluster.get_all(layout.names).items():
        named = decoded(decode_name, data, layout.name(name))
        if named is not None:
            view.names[name] = named
    for table_id, data in cluster.get_all(layout.tables).items():
        table = decoded(decode_table, data, layout.table(table_id))
        if table is not None:
            view.tables.append(table)
    for table_id in cluster.children(layout.regions):
        values = cluster.get_all(layout.table_regions(table_id))
        read = (decoded(decode_region, data, layout.region(table_id, name)) for name, data in values.items())
        view.regions[table_id] = [one for one in read if one is not None]
    # After the regions: the work on each parent is there as long as the parent's replicas are needed.
    for region_id, data in cluster.get_all(layout.reshardings).items():
        work = decoded(decode_resharding, data, layout.resharding(region_id))
        if work is not None:
            view.parents.update(work.parents)
    for uuid, data in cluster.get_all(layout.servers).items():
        server = decoded(decode_server, data, layout.server(uuid))
        if server is not None:
            view.servers.append(server)
    for kind, data in cluster.get_all(layout.shared).items():
        directory = decoded(decode_directory, data, layout.shared_directory(kind))
        if directory is not None:
            view.directories[kind] = directory
    for path, data, decode in _others(cluster):
        decoded(decode, data, path)
    for uuid, found in ask_servers(view.servers, _list_of).items():
        view.lists[uuid] = None if found is None else found.replicas
        if found is not None and found.directory:
            view.used_directories[uuid] = found.directory
    # A server that did not answer is not asked again.
    answering = [one for one in view.servers if view.lists.get(one.uuid) is not None]
    directories = ask_servers(answering, _directories_of)
    view.on_disk = sorted({table_id for tables in directories.values() for table_id in tables or ()})
    view.replicas = {one.uuid: None for one in view.servers if one.tablets and view.lists.get(one.uuid) is None}
    view.replicas |= read_replicas(answering)
    return view


def _others(cluster: Cluster) -> Iterator[tuple[str, bytes, Callable[[bytes, str], object]]]:
    """Yield each znode that only has to be decodable, with its value and decoder."""
    layout = cluster.layout
    decoders: dict[str, Callable[[bytes, str], object]] = {
        layout.cluster: decode_cluster,
        layout.epoch: decode_epoch,
        layout.active: decode_active,
        layout.balancer: decode_balancer,
    }
    below: dict[str, Callable[[bytes, str], object]] = {
        layout.masters: decode_master,
        layout.fenced: decode_fence,
        layout.barred: decode_bar,
        layout.moves: decode_moves,
        layout.intents: decode_intents,
        layout.plans: decode_plan,
        layout.requests: decode_request,
        layout.alarms: decode_alarm,
        layout.runs: decode_run,
        layout.history: _decode_segment,
    }
    for parent, decode in below.items():
        decoders |= {f"{parent}/{name}": decode for name in cluster.children(parent)}
    for path, data in cluster.get_many({path: path for path in decoders}).items():
        yield path, data, decoders[path]


def _decode_segment(data: bytes, path: str) -> object:
    try:
        return unpack(data)
    except CorruptSegment as error:
        raise CorruptZnode(path, str(error)) from error


def _has_master(cluster: Cluster) -> bool:
    active = cluster.active()
    return active is not None and active.epoch > 0


def _read(cluster: Cluster, paths: list[str]) -> list[tuple[str, bytes, int]]:
    """Return (path, value, version) of the existing znodes, pipelined."""
    found = []
    for path, answer in [(path, cluster.client.get_async(path)) for path in paths]:
        with contextlib.suppress(NoNodeError):
            data, stat = answer.get()
            found.append((path, data, stat.version))
    return found


def _list_of(server: ServerRecord) -> messages.OpenList | None:
    """Return the regions that the server has open, None if another start of the server answers. Raise RpcError."""
    found = ask_server(server, messages.ListOpen(server.uuid), messages.OpenList, _SERVER_TIMEOUT_S)
    return found if found.start_code == server.start_code else None


def _directories_of(server: ServerRecord) -> list[str]:
    """Return the tables with files in the server's shared directory. Raise RpcError."""
    return ask_server(server, messages.ListDirectories(server.uuid), messages.Directories, _SERVER_TIMEOUT_S).tables


def show_findings(findings: list[Finding], names: Names, console: Console) -> None:
    """Print the findings, of each problem the first FINDINGS_SHOWN, and their number."""
    shown: Counter[str] = Counter()
    several = Counter(one.problem for one in findings)
    for one in findings:
        shown[one.problem] += 1
        if shown[one.problem] > FINDINGS_SHOWN:
            continue
        text = Text(f"{one.problem}: ", style="yellow" if one.is_warning else "bold red")
        console.print(text.append(_named(one.text, names), style="default"), soft_wrap=True)
        if one.fix is not None:
            console.print(Text(f"    --fix would {_what(one.fix, names)}", style="dim"), soft_wrap=True)
    for problem, number in several.items():
        if number > FINDINGS_SHOWN:
            console.print(f"{problem}: and {number - FINDINGS_SHOWN} more (--json has all)", soft_wrap=True)
    damage = sum(not one.is_warning for one in findings)
    if not findings:
        console.print("[green]nothing is wrong[/green]")
    else:
        words = [output.count(damage, "error")] if damage else []
        words += [output.count(len(findings) - damage, "warning")] if len(findings) > damage else []
        console.print(", ".join(words))


def moving(view: ClusterView) -> list[Moving]:
    """Return the replicas in transition, those with the most failed opens first; parked ones are findings. Pure."""
    found = [
        Moving(one.record.key, one.record.state.value, one.record.attempt, one.record.last_error)
        for one in view.transitions
        if one.record is not None and not one.record.parked
    ]
    return sorted(found, key=lambda one: (-one.attempt, one.replica))


def show_moving(found: list[Moving], names: Names, console: Console) -> None:
    """Print how many replicas are in transition, and the errors of those whose opens have failed."""
    if not found:
        return
    what = output.count(len(found), "replica")
    console.print(f"{what} in transition, which is no fault yet (rk status, rk health)", style="yellow", soft_wrap=True)
    for one in [one for one in found if one.attempt][:MOVING_SHOWN]:
        failed = f"{output.count(one.attempt, 'open')} failed, last error: {names.in_sentence(one.last_error)}"
        console.print(Text(f"    {one.replica} {one.state}: {failed}"), soft_wrap=True)


def _named(text: str, names: Names) -> str:
    """Replace addresses and uuids by names."""
    for address, name in names.by_address().items():
        text = text.replace(address, name)
    return names.in_sentence(text)


def _what(fix: Fix, names: Names) -> str:
    step = fix.kind in (FixKind.DELETE, FixKind.PUT_DOWN, FixKind.NAME, FixKind.ACCESS)
    return f"write {fix.preview}" if step else _named(fix.preview, names)


# --- fixing -----------------------------------------------------------------------------------------------------------


def _fix(given: Globals, cluster: Cluster, findings: list[Finding], *, ask: bool, dry_run: bool) -> list[FixResult]:
    """Take each finding's legal step. A server is fenced once, however many findings require it."""
    wanted: dict[str, Finding] = {}
    for one in findings:
        if one.fix is not None:
            wanted.setdefault(_key(one), one)
    if not wanted:
        if findings and not given.json:
            click.echo("no legal step would help; nothing was changed")
        return []
    if ask:
        output.confirm(f"take {output.count(len(wanted), 'step')}?", "nothing was changed", as_json=given.json)
    done = [_preview(cluster, one) if dry_run else _take(cluster, one) for one in wanted.values()]
    if not given.json:
        word = "would be done" if dry_run else "done"
        for result in done:
            is_right = result.done or (dry_run and not result.is_refused)
            click.echo(f"{word if is_right else 'NOT DONE'}  {result.subject}: {result.detail or result.preview}")
    return done


def _key(finding: Finding) -> str:
    """Return the identity of a step: a step is taken once, even if several findings propose it."""
    fix = finding.fix
    assert fix is not None, finding.subject
    return finding.subject if fix.kind is FixKind.HOLE else fix.path or replica_key(fix.region_id, fix.replica)


def _preview(cluster: Cluster, finding: Finding) -> FixResult:
    """Return the effect of a step. For a hole, ask the master which region would close it."""
    fix = finding.fix
    assert fix is not None, finding.subject
    result = FixResult(finding.subject, fix.preview, False)
    if fix.kind is FixKind.HOLE:
        try:
            result.detail = _close_hole(cluster, fix, dry_run=True)
        except CliError as error:
            result.detail, result.is_refused = error.message, True
    return result


def _close_hole(cluster: Cluster, fix: Fix, *, dry_run: bool = False) -> str:
    request = messages.CloseHole(fix.table_id, fix.start_key, fix.end_key, dry_run)
    return cluster.ask_master(request, messages.Accepted).detail


def _take(cluster: Cluster, finding: Finding) -> FixResult:
    fix = finding.fix
    assert fix is not None, finding.subject
    result = FixResult(finding.subject, fix.preview, True)
    try:
        if fix.kind is FixKind.RETRY:
            answer = cluster.ask_master(messages.RetryRegion(fix.region_id, fix.replica), messages.Accepted)
            result.detail = answer.detail
        elif fix.kind is FixKind.FENCE:
            fence = messages.FenceServer(
                fix.server, f"rk fsck: {finding.problem}, {finding.subject}", start_code=fix.start_code
            )
            result.detail = cluster.ask_master(fence, messages.Accepted).detail
        elif fix.kind is FixKind.HOLE:
            result.detail = _close_hole(cluster, fix)
        elif fix.kind is FixKind.NAME:
            _enter_name(cluster, fix)
        elif fix.kind is FixKind.ACCESS:
            set_access(cluster, WantedLists(cluster), fix.path, fix.version).get()
        else:
            _step(cluster, fix)
    except CliError as error:
        result.done, result.detail = False, error.message
    except NoNodeError:
        result.done, result.detail = False, "it no longer exists"
    except BadVersionError:
        result.done, result.detail = False, "it has changed since: run rk fsck again"
    except NoAuthError:
        result.done, result.detail = False, "the credential may not change the access list"
    except NodeExistsError:
        result.done, result.detail = False, "another table has the name by now"
    return result


def _enter_name(cluster: Cluster, fix: Fix) -> None:
    """Write a table's name again, in one multi that checks the epoch and the table's record."""
    layout, client = cluster.layout, cluster.client
    data, stat = client.get(layout.table(fix.table_id))
    record = decode_table(data, layout.table(fix.table_id))
    if layout.name(record.name) != fix.path or record.state is TableState.REMOVED:
        raise BadVersionError
    acl, _ = client.get_acls(layout.names)
    transaction = client.transaction()
    transaction.check(layout.epoch, client.get(layout.epoch)[1].version)
    transaction.check(layout.table(fix.table_id), stat.version)
    transaction.create(fix.path, fix.table_id.encode("ascii"), acl)
    _raise_first(transaction.commit())


def _step(cluster: Cluster, fix: Fix) -> None:
    """Write a master's legal step of an abandoned transition: checked by version, fenced by the present epoch."""
    before, after = RegionState(fix.before), RegionState(fix.after) if fix.after else None
    states.check(Actor.MASTER, before, after, Cause(fix.cause), subject=fix.path)
    data, _ = cluster.client.get(fix.path)
    epoch = cluster.client.get(cluster.layout.epoch)[1].version
    transaction = cluster.client.transaction()
    transaction.check(cluster.layout.epoch, epoch)
    if after is None:
        transaction.delete(fix.path, fix.version)
    else:
        record = msgspec.structs.replace(
            decode_transition(data, fix.path),
            state=after,
            destination=None,
            epoch=epoch,
            reason=fix.cause,
            since_ms=int(time.time() * 1000),
            parked=True,
        )
        transaction.set_data(fix.path, encode(record), fix.version)
    _raise_first(transaction.commit())


def _raise_first(results: list[Any]) -> None:
    """Raise the error of the rejected operation; the others were rolled back with it."""
    for one in results:
        if isinstance(one, KazooException) and not isinstance(one, RolledBackError | RuntimeInconsistency):
            raise one
