"""How long copies rest."""

from __future__ import annotations

from regionserver.tablets.upkeep.rests import ASKED_MIN, REST_MAX, CopyRests


def test_copies_rest_longer_while_the_reactors_thread_waits_for_a_processor() -> None:
    """Up to a limit, and no more once it waits little.

    Edit that makes this fail: `CopyRests.look` leaves `factor` as it is.
    """
    rests = CopyRests()
    rests.begin(used_s=10.0, queued_s=5.0, handled=0)
    factors = [rests.factor]
    for look in range(1, 20):
        rests.look(10.0 + look * 0.1, 5.0 + look * 0.3, look * ASKED_MIN)
        factors.append(rests.factor)
    assert factors == sorted(factors)
    assert (factors[0], factors[-1]) == (0.0, REST_MAX)
    for look in range(20, 40):
        rests.look(10.0 + look * 0.1, 10.7, look * ASKED_MIN)
    assert rests.factor == 0.0


def test_copies_do_not_rest_on_a_server_without_requests() -> None:
    """Its thread has little to do, and waits longer than that for a processor, because the copies use all of them."""
    rests = CopyRests()
    rests.begin(used_s=0.0, queued_s=0.0, handled=0)
    rests.look(0.01, 0.03, ASKED_MIN)
    assert rests.factor > 0.0
    for look in range(2, 10):
        rests.look(0.01 * look, 0.03 * look, ASKED_MIN + look)
    assert rests.factor == 0.0
