"""Which hosts only this machine reaches."""

from __future__ import annotations

import pytest

from coord.hosts import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "localhost"])
def test_only_this_machine_reaches_a_loopback_host(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::", "", "::ffff:10.0.0.1", "127.example.com", "127.1"])
def test_other_machines_may_reach_other_hosts(host: str) -> None:
    """A name that begins as a loopback address is a name."""
    assert not is_loopback(host)
