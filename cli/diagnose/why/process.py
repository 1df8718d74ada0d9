"""`rk why PROCESS`: the answer of a store node, master or region server, the view of the other processes, and what
would help.

The processes are asked directly (`cli/diagnose/health.py`), so the store is not needed.
"""

from __future__ import annotations

import re
import time
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output
from cli.common.access import addresses_of_store
from cli.common.asking.store import not_running, store_hosts
from cli.common.errors import NotFoundError
from cli.common.local import named_local
from cli.common.options import Globals
from cli.diagnose.health import DOWN, TIMEOUT_S, Gathered, find
from cli.store.status import ask_nodes
from regions.diagnose.explain_server import obstacles
from regions.diagnose.health import MasterFinding, ServerFinding, StoreFinding

_ADDRESS: Final = re.compile(r"[^:/\s]+:\d{1,5}")


class ProcessAnswer(msgspec.Struct):
    """Content of `rk why` for a process. `kind`: store node, master or region server."""

    name: str
    address: str
    kind: str
    #: Its role or state in a word: leader, active, up, draining, drained, down, …
    state: str
    #: Its present work and its faults, in sentences.
    facts: list[str] = []
    #: What would help, in sentences or commands; empty without a fault.
    help: list[str] = []


def is_process(given: Globals, text: str) -> bool:
    """Return True if the text names a daemon of the local cluster, or is an address."""
    local = named_local(given)
    return _ADDRESS.fullmatch(text) is not None or (local is not None and text in {one.name for one in local.daemons()})


def process_answer(given: Globals, text: str) -> ProcessAnswer:
    """Ask all processes, and return the answers that concern the process with this name or address. Raise
    NotFoundError."""
    gathered = find(given, TIMEOUT_S)
    found = gathered.findings
    for node in found.store or ():
        if text in (node.name, node.address):
            return _of_node(given, node)
    for master in found.masters:
        if text in (master.name, master.address):
            return _of_master(given, gathered, master)
    for server in found.servers:
        if text in (server.name, server.address):
            return _of_server(given, gathered, server)
    known = [one.name for group in (found.store or [], found.masters, found.servers) for one in group]
    raise NotFoundError(f"no process {text!r}", f"Known: {', '.join(known) or 'none'}.")


def _of_node(given: Globals, node: StoreFinding) -> ProcessAnswer:
    local = named_local(given)
    admins = {one.address: one.admin for one in local.coord} if local is not None else {}
    hosts = addresses_of_store(store_hosts(given))
    status = next(one for one in ask_nodes(given, hosts, admins, TIMEOUT_S) if one.address == node.address)
    if not node.answers:
        return ProcessAnswer(
            node.name, node.address, "store node", _absent(node), [f"it {node.trouble}"], _revive(given, node)
        )
    facts = []
    if status.term is not None:
        facts.append(f"term {status.term}, applied {status.applied} of {status.commit} entries")
    if status.behind:
        facts.append(f"it has yet to apply {status.behind} of the entries that are committed")
    if status.log_write_p99_ms is not None:
        facts.append(f"99 of 100 of its last writes of the log took at most {status.log_write_p99_ms:.1f} ms")
    facts += [status.error] if status.error else []
    help_ = ["start the other nodes: it needs a majority"] if not node.role else []
    return ProcessAnswer(node.name, node.address, "store node", node.role or "not serving", facts, help_)


def _of_master(given: Globals, gathered: Gathered, master: MasterFinding) -> ProcessAnswer:
    answer = ProcessAnswer(master.name, master.address, "master", master.role or _absent(master))
    status = gathered.statuses.get(master.address)
    if status is None:
        answer.facts.append(f"it {master.trouble}")
        answer.help = _revive(given, master)
        return answer
    answer.facts.append(f"it has run for {status.uptime_ms / 1000:.0f} s")
    if status.role == "active":
        regions = output.count(status.regions, "region")
        moving = output.in_transition(status.rit, status.parked)
        answer.facts.append(f"it is active in epoch {status.epoch}: {regions}, {moving}")
        answer.facts += [gathered.names.in_sentence(one) for one in status.problems]
    elif status.mirror is not None:
        mirror = status.mirror
        behind = f"{mirror.stale_ms / 1000:.1f} s old" if mirror.is_warm else f"reading, {mirror.behind} left"
        answer.facts.append(f"it stands by; its mirror of {output.count(mirror.regions, 'region')} is {behind}")
        active = gathered.names.by_address().get(status.active, status.active)
        answer.facts.append(f"the active master is {active or 'unknown'}")
    return answer


def _of_server(given: Globals, gathered: Gathered, server: ServerFinding) -> ProcessAnswer:
    answer = ProcessAnswer(server.name, server.address, "region server", _state(server))
    if not server.answers:
        answer.facts.append(f"it {server.trouble}")
        answer.help += _revive(given, server)
    load = gathered.loads.get(server.address)
    active = gathered.findings.figures
    if load is None:
        if active is not None:
            answer.facts.append("the active master does not know it: it is not registered in the store")
        else:
            answer.facts.append("no master says what it has")
        return answer
    if active is None:
        answer.facts.append("no master is active: nobody assigns regions")
        answer.help.append("start a master")
    else:
        tablets = (
            "" if load.tablets is None else f", {output.count(load.tablets, 'tablet')} of which it leads {load.leaders}"
        )
        answer.facts.append(
            f"{output.count(load.shared_open, 'region')} open, {load.incoming} coming, {load.outgoing} going{tablets}"
        )
    found = obstacles(load, int(time.time() * 1000))
    answer.facts += [gathered.names.in_sentence(one.text) for one in found]
    answer.help += [gathered.names.in_sentence(one.command) for one in found if one.command]
    if active is not None:
        # The problem of a fenced server repeats its obstacle.
        concerned = [one for one in active.problems if load.server.uuid in one and load.bar is None]
        answer.facts += [text for one in concerned if (text := gathered.names.in_sentence(one)) not in answer.facts]
        if not found and server.answers and not load.open:
            answer.facts.append("nothing keeps regions away from it: the balancer gives it some in a later round")
            answer.help.append("rk balance run")
    return answer


def _state(server: ServerFinding) -> str:
    return server.state or "up" if server.answers else _absent(server)


def _revive(given: Globals, found: StoreFinding | MasterFinding | ServerFinding) -> list[str]:
    """Return what helps a process that does not answer."""
    local = named_local(given)
    if local is not None and not local.supervisor_pid:
        return [not_running(given).hint.partition(": ")[2] or "wait until `rk up` has printed its summary"]
    log = next((one.log for one in local.daemons() if one.name == found.name), "") if local is not None else ""
    end = "" if found.trouble == DOWN else "kill it if it stays like this, and "
    start = f"{end}start it again" if local is None else f"{end}`rk up` starts it again while it runs"
    return [start, f"its log: {log}" if log else f"look at its log on {found.address.partition(':')[0]}"]


def _absent(found: StoreFinding | MasterFinding | ServerFinding) -> str:
    return "down" if found.trouble == DOWN else "silent"


def show_process(answer: ProcessAnswer, console: Console) -> None:
    """Print the answer."""
    well = not answer.help
    console.print(Text(f"{answer.kind} {answer.name}", style="bold").append(f"  {answer.address}  "), end="")
    console.print(Text(answer.state, style="green" if well else "yellow"))
    for one in answer.facts:
        console.print(Text(f"  {one}"), soft_wrap=True)
    for one in answer.help:
        console.print(Text(f"  what helps: {one}", style="bold"), soft_wrap=True)
