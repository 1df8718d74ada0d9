"""The forecast of a freeze by process and duration, and its comparison with what happened."""

from __future__ import annotations

import msgspec
import pytest

from cli.common.errors import UsageFaultError
from cli.drill.freezing.forecast import (
    EARLY_S,
    Forecast,
    FreezeEvent,
    FreezeSituation,
    Likelihood,
    Observed,
    checks,
    compare,
    forecast,
    likelihood,
)
from cli.drill.freezing.situation import parse_connections
from cli.drill.scenarios.freeze import FREEZE_S_MAX, freeze_seconds, in_words

SERVER = FreezeSituation(
    "server-1", "server", 10.0, session_s=3.0, regions=12, tablets_led=5, tablets_alone=1, other_servers=2
)
MASTER = FreezeSituation("master-1", "master", 10.0, session_s=3.0, is_active=True, other_masters=1)
STORE = FreezeSituation(
    "store-1", "store", 10.0, leads_store=True, store_nodes=3, connected=("server-1",), shortest_session_s=3.0
)


def expected(situation: FreezeSituation) -> dict[str, str]:
    return {one.event.name: one.likelihood.name for one in forecast(situation)}


def line(situation: FreezeSituation, event: FreezeEvent) -> Forecast:
    return next(one for one in forecast(situation) if one.event is event)


def lasting(situation: FreezeSituation, seconds: float) -> FreezeSituation:
    return msgspec.structs.replace(situation, freeze_s=seconds)


def test_the_duration_decides_at_both_ends_of_the_window() -> None:
    assert likelihood(0.99, 1.0, 2.0) is Likelihood.NEVER
    assert likelihood(1.0, 1.0, 2.0) is Likelihood.POSSIBLE
    assert likelihood(1.99, 1.0, 2.0) is Likelihood.POSSIBLE
    assert likelihood(2.0, 1.0, 2.0) is Likelihood.CERTAIN


def test_a_long_freeze_of_a_server_costs_its_session_its_regions_and_its_leaderships() -> None:
    assert expected(SERVER) == {
        "TABLETS_ELECT": "CERTAIN",
        "LEASE_ENDS": "CERTAIN",
        "SESSION_ENDS": "CERTAIN",
        "REGIONS_MOVE": "CERTAIN",
        "FAILOVER": "NEVER",
        "OTHER_SESSION_ENDS": "NEVER",
    }
    assert line(SERVER, FreezeEvent.REGIONS_MOVE).count == 12
    assert line(SERVER, FreezeEvent.TABLETS_ELECT).count == 5, "a tablet with one member waits for its server"


def test_tablets_elect_before_the_lease_ends_and_the_lease_ends_before_the_session() -> None:
    elect, lease, session = (
        line(SERVER, event) for event in (FreezeEvent.TABLETS_ELECT, FreezeEvent.LEASE_ENDS, FreezeEvent.SESSION_ENDS)
    )
    assert elect.earliest_s < lease.earliest_s < session.earliest_s
    assert lease.latest_s == 2.0 < session.earliest_s, "a server stops serving before its regions can open elsewhere"
    assert session.earliest_s == pytest.approx(2.625 - EARLY_S)


def test_a_pause_of_a_second_moves_no_region() -> None:
    found = expected(lasting(SERVER, 1.0))
    assert found["TABLETS_ELECT"] == "POSSIBLE"
    assert found["SESSION_ENDS"] == found["REGIONS_MOVE"] == found["LEASE_ENDS"] == "NEVER"
    assert set(expected(lasting(SERVER, 0.1)).values()) == {"NEVER"}


def test_a_server_without_regions_or_without_others_moves_nothing() -> None:
    assert expected(msgspec.structs.replace(SERVER, regions=0))["REGIONS_MOVE"] == "NEVER"
    assert expected(msgspec.structs.replace(SERVER, other_servers=0))["REGIONS_MOVE"] == "NEVER"
    assert expected(msgspec.structs.replace(SERVER, tablets_led=0))["TABLETS_ELECT"] == "NEVER"


def test_a_master_fails_over_when_it_is_active_and_another_one_runs() -> None:
    assert expected(MASTER)["FAILOVER"] == "CERTAIN"
    assert expected(lasting(MASTER, 1.0))["FAILOVER"] == "NEVER"
    for other in (msgspec.structs.replace(MASTER, is_active=False), msgspec.structs.replace(MASTER, other_masters=0)):
        assert expected(other)["FAILOVER"] == "NEVER"
        assert expected(other)["SESSION_ENDS"] == "CERTAIN"


def test_a_frozen_store_node_ends_no_session_while_a_majority_runs() -> None:
    assert expected(STORE) == {
        "TABLETS_ELECT": "NEVER",
        "STORE_ELECTS": "CERTAIN",
        "STORE_STOPS": "CERTAIN",
        "OTHER_SESSION_ENDS": "NEVER",
        "FAILOVER": "NEVER",
        "REGIONS_MOVE": "NEVER",
    }
    follower = msgspec.structs.replace(STORE, leads_store=False)
    assert {"STORE_STOPS", "STORE_ELECTS"}.isdisjoint(expected(follower)), "the majority goes on without it"
    assert "server-1" in line(STORE, FreezeEvent.OTHER_SESSION_ENDS).why


def test_the_only_store_node_may_end_every_session() -> None:
    alone = msgspec.structs.replace(STORE, store_nodes=1)
    assert expected(alone)["OTHER_SESSION_ENDS"] == expected(alone)["FAILOVER"] == "POSSIBLE"
    assert expected(lasting(alone, 1.0))["OTHER_SESSION_ENDS"] == "NEVER"
    assert "after 1.90 s" in in_words(line(alone, FreezeEvent.FAILOVER))


def judged(seen: Observed | None, *, freeze_s: float = 10.0) -> tuple[bool, str]:
    """Return agreement and outcome of the moves of a server's regions."""
    facts = {} if seen is None else {FreezeEvent.REGIONS_MOVE: seen}
    outcomes = compare(forecast(lasting(SERVER, freeze_s)), facts)
    found = next(one for one in outcomes if one.event == FreezeEvent.REGIONS_MOVE.value)
    return found.agrees, found.outcome


def test_all_regions_that_must_move_have_moved() -> None:
    assert judged(Observed(12, 3.1, 3.4)) == (True, "12 times, after 3.10 to 3.40 s")
    assert judged(Observed(11, 3.1, 3.4)) == (False, "11 times, after 3.10 to 3.40 s; expected 12")
    assert judged(None) == (False, "did not happen")


def test_a_region_that_moves_too_early_or_unexpectedly_breaks_the_forecast() -> None:
    assert judged(Observed(12, 1.0, 3.4)) == (False, "12 times, after 1.00 to 3.40 s: before 2.52 s")
    assert judged(Observed(1, 0.9, 0.9), freeze_s=1.0) == (False, "1 time, after 0.90 s")


def test_a_possible_event_agrees_either_way_and_a_late_one_is_noted() -> None:
    assert judged(None, freeze_s=3.0)[0]
    assert judged(Observed(3, 3.1, 3.4), freeze_s=3.0)[0]
    assert judged(Observed(12, 3.1, 30.0)) == (True, "12 times, after 3.10 to 30.00 s: later than 7.00 s")


def test_only_observable_events_count_for_the_verdict() -> None:
    outcomes = compare(forecast(SERVER), {})
    names = {one.name for one in checks(outcomes)}
    assert f"as forecast: {FreezeEvent.SESSION_ENDS.value}" in names
    assert f"as forecast: {FreezeEvent.LEASE_ENDS.value}" not in names
    broken = [one for one in checks(outcomes) if not one.held]
    assert {one.name for one in broken} == {
        f"as forecast: {event.value}"
        for event in (FreezeEvent.TABLETS_ELECT, FreezeEvent.SESSION_ENDS, FreezeEvent.REGIONS_MOVE)
    }


def test_connections_of_the_store_are_parsed() -> None:
    """Connections without a session, of four-letter words, are skipped."""
    text = b'{"connections": [{"session_id": 65546, "session_timeout": 3000, "packets_sent": 4}, {"session_id": 0}],'
    assert parse_connections(text + b' "secure_connections": [{"session_id": 7, "session_timeout": 500}]}') == {
        65546: 3.0,
        7: 0.5,
    }


def test_the_duration_is_limited() -> None:
    assert freeze_seconds("500ms") == 0.5
    assert freeze_seconds("4m") == FREEZE_S_MAX
    for text in ("0", "4.1m", "5x"):
        with pytest.raises(UsageFaultError):
            freeze_seconds(text)
