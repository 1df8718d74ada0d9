"""The forecast of a freeze: the sessions and leases that end, the regions that move, the elections; and the comparison
with the facts.

Everything here is pure. A forecast has one line per event. Each event has a window: the freeze must last for
`earliest_s` before the event can happen, and the event has happened when the freeze has lasted for `latest_s`. So the
duration decides the likelihood:

    shorter than earliest_s    NEVER
    in between                 POSSIBLE
    longer than latest_s       CERTAIN

The windows come from the timeouts of the sessions (docs/store/guarantees.md) and from the election timeouts of the
tablets and the store. Upper ends include `SLACK_S`, because a busy machine is late.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cli.common import output
from cli.common.local import MASTER, SERVER, STORE
from cli.drill.report import ForecastOutcome, InvariantCheck, check

#: A session ends at most two ticks of the store after its timeout.
STORE_TICK_S: Final = 0.5
#: A client sends a ping when a third of its timeout has passed; a region server renews eight times per timeout.
MASTER_SILENT_SHARE: Final = 1 / 3
SERVER_SILENT_SHARE: Final = 1 / 8
#: A region server's lease is this share of its session's timeout.
LEASE_SHARE: Final = 2 / 3
#: Least and longest time in which a follower waits for its leader: tablets, and the store.
TABLET_ELECTION_S: Final = (0.5, 1.0)
STORE_ELECTION_S: Final = (0.6, 1.2)
#: Interval of the messages of a leader: the last one may have been sent this long before the freeze.
LEADER_INTERVAL_S: Final = 0.2
#: Lateness of a busy machine, allowed for every event.
SLACK_S: Final = 1.0
#: Time for a standby to become active, and for masters to reopen the regions of a server.
TAKEOVER_S: Final = 2.0
#: Events are observed through the store and rounded: one that seems earlier by less than this was not early.
EARLY_S: Final = 0.1


class FreezeEvent(enum.StrEnum):
    """An event that a freeze may cause."""

    LEASE_ENDS = "lease ends"
    SESSION_ENDS = "session ends"
    OTHER_SESSION_ENDS = "session of another process ends"
    FAILOVER = "another master becomes active"
    REGIONS_MOVE = "regions open on other servers"
    TABLETS_ELECT = "tablets elect other leaders"
    STORE_ELECTS = "the store elects another leader"
    STORE_STOPS = "the store commits nothing"


class Likelihood(enum.StrEnum):
    """Forecast of an event: whether the freeze causes it."""

    NEVER = "no"
    POSSIBLE = "maybe"
    CERTAIN = "yes"


#: Events that are not visible outside of the frozen process. They are forecast, but not compared.
UNSEEN: Final = frozenset({FreezeEvent.LEASE_ENDS, FreezeEvent.STORE_STOPS})


class FreezeSituation(msgspec.Struct, frozen=True):
    """The process that will be frozen, and the facts that depend on it."""

    name: str
    role: str
    freeze_s: float
    #: Negotiated timeout of its session; 0 for a store node.
    session_s: float = 0.0
    #: A master: whether it is active, and the number of the other masters.
    is_active: bool = False
    other_masters: int = 0
    #: A region server: the numbers of its open shared regions, of the led tablets with other members, of the led
    #: tablets without other members, and of the other servers.
    regions: int = 0
    tablets_led: int = 0
    tablets_alone: int = 0
    other_servers: int = 0
    #: A store node: whether it leads, the number of all nodes, the sessions connected to it, and the shortest timeout
    #: of all sessions.
    leads_store: bool = False
    store_nodes: int = 0
    connected: tuple[str, ...] = ()
    shortest_session_s: float = 0.0


class Forecast(msgspec.Struct, frozen=True):
    """One event: its likelihood, its time (seconds from the freeze), its largest count, and the reason."""

    event: FreezeEvent
    subject: str
    likelihood: Likelihood
    earliest_s: float
    latest_s: float
    count: int
    why: str


class Observed(msgspec.Struct, frozen=True):
    """Occurrences of one event: their number, and the first and last time in seconds from the freeze."""

    count: int
    first_s: float = 0.0
    last_s: float = 0.0


def forecast(situation: FreezeSituation) -> list[Forecast]:
    """Return the expected events of the freeze, in the order of their times."""
    makers = {STORE: _of_store_node, MASTER: _of_master, SERVER: _of_server}
    return makers[situation.role](situation)


def compare(forecasts: Sequence[Forecast], facts: Mapping[FreezeEvent, Observed]) -> list[ForecastOutcome]:
    """Return each forecast beside the facts; an event without facts did not happen."""
    found = []
    for one in forecasts:
        is_observed = one.event not in UNSEEN
        agrees, outcome = _judge(one, facts.get(one.event, Observed(0))) if is_observed else (True, "not observable")
        window = (one.earliest_s, None if one.latest_s == float("inf") else one.latest_s)
        event, expected = one.event.value, one.likelihood.value
        found.append(ForecastOutcome(event, expected, *window, one.count, one.why, is_observed, agrees, outcome))
    return found


def checks(outcomes: Sequence[ForecastOutcome]) -> list[InvariantCheck]:
    """Return one check per observed event; an event that was not as forecast breaks the verdict."""
    return [
        check(
            f"as forecast: {one.event}",
            [] if one.agrees else [f"expected {one.expected}: {one.outcome}"],
            f"{one.expected}: {one.outcome}",
        )
        for one in outcomes
        if one.is_observed
    ]


def likelihood(freeze_s: float, earliest_s: float, latest_s: float) -> Likelihood:
    """Return whether an event with this window follows from a freeze of this length."""
    if freeze_s < earliest_s:
        return Likelihood.NEVER
    return Likelihood.CERTAIN if freeze_s >= latest_s else Likelihood.POSSIBLE


def _event(
    event: FreezeEvent, one: FreezeSituation, window: tuple[float, float], count: int, why: str, *, after_s: float = 0.0
) -> Forecast:
    """Return the forecast of an event; `after_s` is how long its effects take after the window."""
    found = likelihood(one.freeze_s, *window) if count else Likelihood.NEVER
    earliest_s, latest_s = round(window[0], 3), round(window[1] + after_s, 3)
    return Forecast(event, one.name, found, earliest_s, latest_s, count, why)


def _never(event: FreezeEvent, one: FreezeSituation, why: str) -> Forecast:
    return Forecast(event, one.name, Likelihood.NEVER, 0.0, 0.0, 0, why)


def _session(one: FreezeSituation, share: float) -> tuple[float, float]:
    """Return the window in which a frozen process's session ends, if `share` of the timeout is its longest silence."""
    return one.session_s * (1 - share) - EARLY_S, one.session_s + 2 * STORE_TICK_S + SLACK_S


def _election(bounds: tuple[float, float]) -> tuple[float, float]:
    return max(0.0, bounds[0] - LEADER_INTERVAL_S - EARLY_S), bounds[1] + SLACK_S


def _of_server(one: FreezeSituation) -> list[Forecast]:
    lease_s = one.session_s * LEASE_SHARE
    lease = (lease_s - one.session_s * SERVER_SILENT_SHARE, lease_s)
    ends = _session(one, SERVER_SILENT_SHARE)
    voters = output.count(one.tablets_led, "tablet")
    found = [
        _event(
            FreezeEvent.TABLETS_ELECT,
            one,
            _election(TABLET_ELECTION_S),
            one.tablets_led,
            f"{one.name} leads {voters} with other members; they wait {TABLET_ELECTION_S[0]:g} to"
            f" {TABLET_ELECTION_S[1]:g} s for their leader",
        ),
        _event(
            FreezeEvent.LEASE_ENDS,
            one,
            lease,
            1,
            f"two thirds of the session's timeout after the last renewal; then {one.name} rejects requests",
        ),
        _event(
            FreezeEvent.SESSION_ENDS,
            one,
            ends,
            1,
            f"its timeout is {one.session_s:g} s; the store adds up to two ticks",
        ),
    ]
    if one.regions and one.other_servers:
        held = output.count(one.regions, "shared region")
        found.append(
            _event(
                FreezeEvent.REGIONS_MOVE,
                one,
                ends,
                one.regions,
                f"{one.name} has {held}; masters reopen them when the session has ended",
                after_s=TAKEOVER_S,
            )
        )
    else:
        why = "it has no shared region" if not one.regions else "no other server runs: they wait for it"
        found.append(_never(FreezeEvent.REGIONS_MOVE, one, why))
    found.append(_never(FreezeEvent.FAILOVER, one, "masters do not depend on a region server"))
    found.append(_never(FreezeEvent.OTHER_SESSION_ENDS, one, "no other process is frozen"))
    return found


def _of_master(one: FreezeSituation) -> list[Forecast]:
    ends = _session(one, MASTER_SILENT_SHARE)
    found = [
        _event(
            FreezeEvent.SESSION_ENDS,
            one,
            ends,
            1,
            f"its timeout is {one.session_s:g} s; the store adds up to two ticks",
        )
    ]
    if not one.is_active:
        found.append(_never(FreezeEvent.FAILOVER, one, f"{one.name} is a standby"))
    elif not one.other_masters:
        # Its own next session makes it active again.
        found.append(_never(FreezeEvent.FAILOVER, one, "no other master runs"))
    else:
        found.append(
            _event(
                FreezeEvent.FAILOVER,
                one,
                ends,
                1,
                f"{one.name} is active; a standby takes over when its session has ended, not before: a frozen"
                " process accepts connections",
                after_s=TAKEOVER_S,
            )
        )
    found.append(_never(FreezeEvent.REGIONS_MOVE, one, "regions stay open without a master"))
    found.append(_never(FreezeEvent.TABLETS_ELECT, one, "tablets do not depend on masters"))
    found.append(_never(FreezeEvent.OTHER_SESSION_ENDS, one, "no other process is frozen"))
    return found


def _of_store_node(one: FreezeSituation) -> list[Forecast]:
    found = [_never(FreezeEvent.TABLETS_ELECT, one, "tablets do not depend on the store")]
    if one.store_nodes == 1:
        # The clock advances while the node is frozen. Afterwards the node may expire sessions before it reads their
        # requests.
        window = (one.shortest_session_s * (1 - MASTER_SILENT_SHARE) - EARLY_S, float("inf"))
        found += [
            _event(FreezeEvent.STORE_STOPS, one, (0.0, 0.0), 1, "it is the only node of the store"),
            _event(FreezeEvent.OTHER_SESSION_ENDS, one, window, 1, "every session is silent during the freeze"),
            _event(FreezeEvent.FAILOVER, one, window, 1, "the active master's session is silent, too"),
        ]
        return found
    if one.leads_store:
        window = _election(STORE_ELECTION_S)
        why = f"{one.name} leads; the others wait {STORE_ELECTION_S[0]:g} to {STORE_ELECTION_S[1]:g} s for their leader"
        found += [
            _event(FreezeEvent.STORE_ELECTS, one, window, 1, why),
            _event(FreezeEvent.STORE_STOPS, one, (0.0, 0.0), 1, "until another node leads"),
        ]
    others = f"{', '.join(one.connected)} move to other nodes" if one.connected else "no process is connected to it"
    found.append(
        _never(FreezeEvent.OTHER_SESSION_ENDS, one, f"{others}; a new leader gives every session its whole timeout")
    )
    found.append(_never(FreezeEvent.FAILOVER, one, "the active master keeps its session"))
    found.append(_never(FreezeEvent.REGIONS_MOVE, one, "the region servers keep their sessions"))
    return found


def _judge(one: Forecast, seen: Observed) -> tuple[bool, str]:
    """Return whether the facts agree with a forecast, and the facts in words."""
    if not seen.count:
        return one.likelihood is not Likelihood.CERTAIN, "did not happen"
    when = f"{seen.first_s:.2f}" if seen.count == 1 else f"{seen.first_s:.2f} to {seen.last_s:.2f}"
    happened = f"{output.count(seen.count, 'time')}, after {when} s"
    if one.likelihood is Likelihood.NEVER:
        return False, happened
    if seen.first_s < one.earliest_s - EARLY_S:
        return False, f"{happened}: before {one.earliest_s:.2f} s"
    if one.likelihood is Likelihood.CERTAIN and seen.count < one.count:
        return False, f"{happened}; expected {one.count}"
    late = f": later than {one.latest_s:.2f} s" if seen.last_s > one.latest_s else ""
    return True, f"{happened}{late}"
