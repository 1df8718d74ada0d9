"""Server addresses: the order in which a client tries them, and the pauses between attempts."""

from __future__ import annotations

from typing import Final

from coord.env import Rng
from coord.errors import ConfigError

DEFAULT_PORT: Final = 2181

#: Longest pause between two servers of one round: spreads the clients of a dead server over more than a millisecond.
SPREAD_MS: Final = 20
#: Pause after the first round in which no server worked. It doubles with each further round.
BACKOFF_MS_MIN: Final = 50
#: Longest pause; at most a quarter of the session timeout, so that the session survives a few rounds.
BACKOFF_MS_MAX: Final = 2000


def parse_hosts(hosts: str) -> tuple[list[tuple[str, int]], str]:
    """Parse `host:port,host:port/chroot` into the addresses and the chroot ("" for none).

    The default port is 2181, IPv6 addresses are in brackets, a trailing `/` is ignored. Raise ConfigError.
    """
    servers, slash, chroot = hosts.partition("/")
    chroot = (slash + chroot).rstrip("/")
    if "//" in chroot:
        raise ConfigError(f"{hosts!r}: empty part in the chroot {chroot!r}")
    addresses = [_address(part.strip(), hosts) for part in servers.split(",") if part.strip()]
    if not addresses:
        raise ConfigError(f"{hosts!r} names no server; expected host:port,host:port[/chroot]")
    return addresses, chroot


def _address(text: str, hosts: str) -> tuple[str, int]:
    """Parse one `host:port` of `hosts`."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{hosts!r}: {text!r} is not host:port")
    return host, int(port)


class HostCycle:
    """The servers in a random order of this client, repeated, with growing pauses after rounds without success."""

    def __init__(self, addresses: list[tuple[str, int]], rng: Rng, *, timeout_ms: int) -> None:
        self._rng = rng
        self._addresses = list(addresses)
        for i in range(len(addresses) - 1, 0, -1):
            j = rng.below(i + 1)
            self._addresses[i], self._addresses[j] = self._addresses[j], self._addresses[i]
        self._pause_ms_max = max(BACKOFF_MS_MIN, min(BACKOFF_MS_MAX, timeout_ms // 4))
        self._turn = 0
        self._failures = 0

    def __len__(self) -> int:
        """Return the number of servers."""
        return len(self._addresses)

    def next_address(self) -> tuple[str, int]:
        """Return the server to try next."""
        address = self._addresses[self._turn % len(self._addresses)]
        self._turn += 1
        return address

    def failed(self) -> int:
        """Record a failed attempt and return the pause before the next one in ms."""
        self._failures += 1
        rounds, within = divmod(self._failures, len(self._addresses))
        if within:
            return self._rng.below(SPREAD_MS)
        longest = min(self._pause_ms_max, BACKOFF_MS_MIN << min(rounds - 1, 16))
        return longest // 2 + self._rng.below(longest // 2 + 1)

    def succeeded(self) -> None:
        """Record a connection that worked: the next pause is short again."""
        self._failures = 0
