"""The lease: it ends before the session can, whatever arrives late."""

from __future__ import annotations

from regionserver.session.lease import MARGIN, Lease


def lease(timeout_ms: int = 3000) -> Lease:
    made = Lease()
    made.begin(timeout_ms)
    return made


def test_no_lease_before_the_first_renewal() -> None:
    """A session alone is no lease."""
    assert not lease().holds(0.0)


def test_it_counts_from_when_the_request_was_sent() -> None:
    """An answer that was read late proves only what was true when it was asked."""
    held = lease()
    held.renew(sent_at_s=10.0)
    assert held.holds(10.0 + 3.0 * (1 - MARGIN) - 0.001)
    assert not held.holds(10.0 + 3.0 * (1 - MARGIN))


def test_late_answers_do_not_shorten_it() -> None:
    """Answers out of order: the latest sent counts."""
    held = lease()
    held.renew(12.0)
    held.renew(10.0)
    assert held.left_s(12.0) == 3.0 * (1 - MARGIN)


def test_it_ends_with_the_session() -> None:
    """Neither the end of a session nor the beginning of the next leaves a lease over."""
    held = lease()
    held.renew(10.0)
    held.end()
    assert not held.holds(10.0)
    held.renew(10.0)
    held.begin(3000)
    assert not held.holds(10.0)
    assert held.left_s(10.0) == 0.0


def test_several_renewals_may_be_lost() -> None:
    """The interval leaves room for more than one lost answer."""
    held = lease()
    assert held.renewal_interval_s * 4 < 3.0 * (1 - MARGIN)
