"""The verdict about a whole cluster: healthy, degraded or unavailable, with the reasons, the gravest first. Pure.

    HEALTHY       all processes answer, all regions are open, no fault is known
    DEGRADED      clients are served; some protection is missing, or something that they will need
    UNAVAILABLE   some request of a client is refused, or waits for an operator

`judge` decides from the answers of the processes (`Findings`). An unknown fact is None or absent, and never counts as
healthy: without the figures of an active master the verdict is DEGRADED at best.

`rk health` asks all processes and prints the verdict; a master's `/health` has the verdict from the facts that this
master knows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from coord.security.principal import OpenDoor
from regions.diagnose.live.work_in_progress import WorkInProgress
from regions.messages.cluster import MasterStatus, Unserved
from regions.messages.tablets import TabletHealth

#: Time in transition after which a region counts as unavailable: clients retry for about this long.
TRANSITION_MS: Final = 5_000
#: Number of failed opens within that time; the pauses between them are 0.5, 1, 2 and 4 s. Each attempt writes the
#: transition again, so the age of its state does not show the whole time.
ATTEMPTS: Final = 4
#: Roles in which a store node takes writes.
_LEADERS: Final = ("leader", "standalone")
#: Roles in which a store node serves its clients.
_SERVING: Final = (*_LEADERS, "follower", "observer")
#: Names in one reason.
_NAMED_MAX: Final = 5


class HealthVerdict(enum.StrEnum):
    """The state of a cluster. `EXIT_STATUS` has the exit status of each."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


#: Exit statuses of `rk health` and `rk status --check`.
EXIT_STATUS: Final = {HealthVerdict.HEALTHY: 0, HealthVerdict.DEGRADED: 1, HealthVerdict.UNAVAILABLE: 2}


#: The verdict for an open door, and the sentence about the daemons.
_OPEN_DOORS: Final = (
    (
        OpenDoor.SECURING,
        HealthVerdict.DEGRADED,
        "callers without a proof, too: `rk secure` goes on if it was interrupted, `rk secure --finish` ends this",
    ),
    (OpenDoor.EXPOSED, HealthVerdict.HEALTHY, "everybody who reaches the port (--insecure)"),
)


class StoreFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of a store node to `srvr`. `role` is "" if the node did not answer or does not serve."""

    name: str
    address: str
    answers: bool
    role: str = ""
    #: The fault: "refuses connections", "accepts connections and does not answer", …
    trouble: str = ""
    #: Sentences about its certificate, if that soon expires.
    expiring: list[str] = []
    open_door: OpenDoor = OpenDoor.CLOSED


class MasterFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of a master. `role`: active, activating or standby."""

    name: str
    address: str
    answers: bool
    role: str = ""
    trouble: str = ""
    #: Sentences about its certificates that soon expire.
    expiring: list[str] = []
    open_door: OpenDoor = OpenDoor.CLOSED


class ServerFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A region server's answer, and the active master's answer about the server; None: no answer."""

    name: str
    address: str
    answers: bool
    trouble: str = ""
    #: Regions with a single owner that are open on the server.
    regions: int | None = None
    #: Tablets with a member on the server.
    tablets: int | None = None
    #: Fenced, or how far its drain is (`ServerLoad.drained`); "" for a server that takes regions.
    state: str = ""
    #: Sentences about its certificates that soon expire.
    expiring: list[str] = []
    open_door: OpenDoor = OpenDoor.CLOSED
    #: Whether it has the masters' credential for the store.
    shares_credential: bool = False


#: Said of region servers that have the masters' credential, as those of earlier builds.
SHARED_CREDENTIAL: Final = (
    "region servers have the masters' credential for the store: `rk secure` gives them an identity of their own"
)


class Findings(msgspec.Struct, omit_defaults=True):
    """All answers and facts. `figures` is the active master's answer, None if no active master answered."""

    #: None: the store's nodes were not asked.
    store: list[StoreFinding] | None = None
    masters: list[MasterFinding] = []
    servers: list[ServerFinding] = []
    figures: MasterStatus | None = None


class Reason(msgspec.Struct, frozen=True):
    """One reason for the verdict, or a note that leaves a cluster HEALTHY."""

    verdict: HealthVerdict
    text: str


class Health(msgspec.Struct, frozen=True):
    """The verdict, with its reasons: those of UNAVAILABLE first, each group from the store upwards."""

    verdict: HealthVerdict
    reasons: list[Reason]


def judge(found: Findings) -> Health:
    """Return the verdict about a cluster."""
    reasons = [*_of_store(found.store), *_of_masters(found.masters), *_of_servers(found.servers)]
    reasons += _of_figures(found.figures)
    # One sentence about the authority, which several processes show.
    shown = [one.expiring for one in found.store or []]
    shown += [*(one.expiring for one in found.masters), *(one.expiring for one in found.servers)]
    sentences = dict.fromkeys(text for one in shown for text in one)
    reasons += [Reason(HealthVerdict.DEGRADED, text) for text in sentences]
    reasons += _of_open_doors([*(found.store or []), *found.masters, *found.servers])
    sharing = [one.name for one in found.servers if one.shares_credential]
    if sharing:
        some = f" ({', '.join(sharing[:5])})" if len(sharing) < len(found.servers) else ""
        text = SHARED_CREDENTIAL + some
        reasons.append(Reason(HealthVerdict.HEALTHY, text))
    return _verdict(reasons)


def judge_figures(figures: MasterStatus) -> Health:
    """Return the verdict by an active master's figures alone."""
    return _verdict(list(_of_figures(figures)))


def _verdict(reasons: list[Reason]) -> Health:
    reasons.sort(key=lambda one: -EXIT_STATUS[one.verdict])
    return Health(reasons[0].verdict if reasons else HealthVerdict.HEALTHY, reasons)


def unserved(work: WorkInProgress, now_ms: int) -> Unserved:
    """Return the replicas of shared regions that should be open and are not. Only replicas with work are examined."""
    oldest = work.trying
    transition = None if oldest is None else oldest.transition
    if oldest is None or transition is None:
        return Unserved(work.waiting, work.parked)
    # An earlier master may have written the state without its time.
    age_ms = max(0, now_ms - (transition.since_ms or oldest.seen_ms))
    error = oldest.last_error or transition.last_error
    return Unserved(work.waiting, work.parked, oldest.key, transition.state.value, age_ms, error, transition.attempt)


def _of_store(nodes: list[StoreFinding] | None) -> Iterator[Reason]:
    if nodes is None:
        return
    serving = [one for one in nodes if one.role in _SERVING]
    if not any(one.answers for one in nodes):
        yield Reason(HealthVerdict.UNAVAILABLE, "no node of the store answers")
    elif not any(one.role in _LEADERS for one in serving) and len(serving) < len(nodes):
        # Followers serve while they have a leader. If all nodes serve, a node that was not named leads.
        yield Reason(HealthVerdict.UNAVAILABLE, f"the store has no leader: {len(serving)} of {len(nodes)} nodes serve")
    for one in nodes:
        if one.role not in _SERVING:
            yield Reason(HealthVerdict.DEGRADED, f"store node {one.name} {one.trouble or 'does not serve'}")


def _of_masters(masters: list[MasterFinding]) -> Iterator[Reason]:
    if not any(one.role == "active" for one in masters):
        answering = sum(one.answers for one in masters)
        text = "no master is active: nothing is assigned, tables cannot be changed"
        yield Reason(HealthVerdict.DEGRADED, f"{text} ({answering} of {len(masters)} masters answer)")
    for one in masters:
        if not one.answers:
            yield Reason(HealthVerdict.DEGRADED, f"master {one.name} {one.trouble or 'does not answer'}")


def _of_servers(servers: list[ServerFinding]) -> Iterator[Reason]:
    if servers and not any(one.answers for one in servers):
        yield Reason(HealthVerdict.UNAVAILABLE, "no region server answers")
    for one in servers:
        if not one.answers:
            has = f": {one.regions} regions are served by nobody" if one.regions else ""
            verdict = HealthVerdict.UNAVAILABLE if one.regions else HealthVerdict.DEGRADED
            yield Reason(verdict, f"region server {one.name} {one.trouble or 'does not answer'}{has}")
    for state in sorted({one.state for one in servers if one.state}):
        named = [one.name for one in servers if one.state == state]
        yield Reason(HealthVerdict.DEGRADED, f"{_some(named)} {'is' if len(named) == 1 else 'are'} {state}")


def _of_open_doors(daemons: Sequence[StoreFinding | MasterFinding | ServerFinding]) -> Iterator[Reason]:
    """Yield a reason for each kind of daemon that serves callers without a proof. Daemons with --insecure do so on
    purpose."""
    for door, verdict, text in _OPEN_DOORS:
        named = [one.name for one in daemons if one.open_door is door]
        if named:
            yield Reason(verdict, f"{_some(named)} {'serves' if len(named) == 1 else 'serve'} {text}")


def _of_figures(figures: MasterStatus | None) -> Iterator[Reason]:
    if figures is None:
        yield Reason(HealthVerdict.DEGRADED, "no active master says which regions and tablets are open")
        return
    tablets = figures.tablets or {}
    lost = tablets.get(TabletHealth.UNAVAILABLE, 0)
    if lost:
        yield Reason(
            HealthVerdict.UNAVAILABLE,
            f"{_count(lost, 'tablet has', 'tablets have')} no leader or no majority, or a seal",
        )
    if figures.unserved is not None:
        yield from _of_unserved(figures.unserved)
    if figures.unusable > lost:
        yield Reason(
            HealthVerdict.DEGRADED, f"{_count(figures.unusable - lost, 'tablet is', 'tablets are')} being created"
        )
    for health, text in _OF_TABLETS:
        number = tablets.get(health, 0)
        if number and not any(health in one for one in figures.problems):
            yield Reason(HealthVerdict.DEGRADED, f"{_count(number, 'tablet', 'tablets')} {text}")
    for problem in figures.problems:
        yield Reason(HealthVerdict.DEGRADED, problem)


def _of_unserved(found: Unserved) -> Iterator[Reason]:
    if found.parked:
        yield Reason(HealthVerdict.UNAVAILABLE, f"{_count(found.parked, 'region is', 'regions are')} parked")
    waiting = found.count - found.parked
    if waiting > 0:
        failed = f", {_count(found.attempts, 'open has', 'opens have')} failed" if found.attempts else ""
        error = f", last error: {found.error}" if found.error else ""
        oldest = f": {found.key} {found.state} for {found.age_ms / 1000:.1f} s{failed}{error}" if found.key else ""
        is_refused = found.age_ms > TRANSITION_MS or found.attempts > ATTEMPTS
        yield Reason(
            HealthVerdict.UNAVAILABLE if is_refused else HealthVerdict.DEGRADED,
            f"{_count(waiting, 'region is', 'regions are')} not open yet{oldest}",
        )


#: Healths of tablets that serve their clients and are not HEALTHY.
_OF_TABLETS: Final = (
    (TabletHealth.CONSENSUS_MISMATCH, "with replicas that contradict each other"),
    (TabletHealth.UNDER_REPLICATED, "with fewer healthy voters than wanted"),
    (TabletHealth.RECOVERING, "with a member being added"),
    (TabletHealth.UNKNOWN, "not reported to the active master yet"),
)


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _NAMED_MAX
    return ", ".join(listed[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
