"""The lease: it ends before the session can, for any late replies."""

from __future__ import annotations

from regionserver.session.lease import MARGIN, Lease


def lease(timeout_ms: int = 3000) -> Lease:
    made = Lease()
    made.begin(timeout_ms)
    return made


def test_there_is_no_lease_before_the_first_renewal() -> None:
    """A session alone is not a lease."""
    assert not lease().holds(0.0)


def test_a_lease_counts_from_the_time_the_renewal_was_sent() -> None:
    """A late reply proves only the state at the time of the request."""
    held = lease()
    held.renew(sent_at_s=10.0)
    assert held.holds(10.0 + 3.0 * (1 - MARGIN) - 0.001)
    assert not held.holds(10.0 + 3.0 * (1 - MARGIN))


def test_late_replies_do_not_shorten_a_lease() -> None:
    """For answers out of order, the latest request counts."""
    held = lease()
    held.renew(12.0)
    held.renew(10.0)
    assert held.left_s(12.0) == 3.0 * (1 - MARGIN)


def test_a_lease_ends_with_its_session() -> None:
    """Neither the end of a session nor the beginning of the next one leaves a lease."""
    held = lease()
    held.renew(10.0)
    held.end()
    assert not held.holds(10.0)
    held.renew(10.0)
    held.begin(3000)
    assert not held.holds(10.0)
    assert held.left_s(10.0) == 0.0


def test_a_lease_survives_several_lost_renewals() -> None:
    """The interval leaves room for more than one lost answer."""
    held = lease()
    assert held.renewal_interval_s * 4 < 3.0 * (1 - MARGIN)
