"""The Host header of admin ports: a foreign page that rebinds its name must learn nothing."""

from __future__ import annotations

import pytest

from coord.security.admin import is_known_host


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:21841",
        "127.0.0.1",
        "10.1.2.3:80",
        "[::1]:21841",
        "localhost",
        "LOCALHOST:9",
        "a.localhost",
        "master1",
        "Master1:21841",
        "master1.",
    ],
)
def test_own_names_and_addresses_are_known(host: str) -> None:
    """Addresses need no list; names are those of the list and of the loopback."""
    assert is_known_host(host, {"master1"})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:21841",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[",
        "master2",
        "a:b:c.example",
    ],
)
def test_foreign_names_are_not(host: str) -> None:
    """Whatever merely looks like an own name is foreign."""
    assert not is_known_host(host, {"master1"})


def test_a_request_without_host_is_no_browser() -> None:
    """Probes that speak HTTP/1.0 send none."""
    assert is_known_host(None, ())
