"""Copy sessions of a source: one per member, limits, pins, the rate."""

from __future__ import annotations

from regionserver.tablets.copying.sessions import OUT_MAX, CopySessions, Pace


def test_a_second_session_of_a_member_ends_the_first() -> None:
    sessions = CopySessions()
    first = sessions.begin("t", 2, "s2", 10)
    second = sessions.begin("t", 2, "s2", 20)
    assert first is not None
    assert second is not None
    assert first.ended == "the destination has begun anew"
    assert second.ended == ""
    # The end of the first one's connection must not end the second.
    sessions.end(first, "its connection has ended")
    assert sessions.count() == 1
    assert sessions.pin_of("t") == 20
    sessions.end(second)
    assert sessions.count() == 0


def test_the_limit_of_sessions() -> None:
    sessions = CopySessions()
    begun = [sessions.begin(f"t{number}", 2, "s2", 0) for number in range(OUT_MAX)]
    assert all(begun)
    assert sessions.begin("more", 2, "s2", 0) is None
    # A destination that begins anew replaces its own session.
    assert sessions.begin("t1", 2, "s2", 0) is not None
    assert sessions.count() == OUT_MAX
    sessions.end_all("the source stops")
    assert sessions.count() == 0
    assert begun[0] is not None
    assert begun[0].ended == "the source stops"


def test_the_lowest_pin_of_a_tablet_holds() -> None:
    sessions = CopySessions()
    first, second = sessions.begin("t", 2, "s2", 30), sessions.begin("t", 3, "s3", 20)
    sessions.begin("u", 2, "s2", 5)
    assert sessions.pin_of("t") == 20
    assert second is not None
    sessions.end(second)
    assert sessions.pin_of("t") == 30
    assert first is not None
    first.sent = 700
    sessions.end(first)
    assert sessions.pin_of("t") is None
    assert sessions.sent == 700


def test_the_pace_of_all_copies_together() -> None:
    pace = Pace(1000)
    assert pace.pause_s(500, 10.0) == 0.0
    assert pace.pause_s(500, 10.0) == 0.5
    assert pace.pause_s(100, 10.25) == 0.75
    # Budget of a time without sends is not saved.
    assert pace.pause_s(1000, 100.0) == 0.0
    assert pace.pause_s(1000, 100.0) == 1.0
    assert Pace(0).pause_s(1 << 40, 0.0) == 0.0
