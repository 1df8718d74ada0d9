"""The list of revoked credentials, followed in the store, and kept in a file for starts while the store is away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twisted.logger import Logger

from coord.client.following.kept import KeptValue
from coord.client.following.znode import FollowedZnode
from coord.client.session import ZkClient
from coord.security import process, revocation

log = Logger()

#: Interval between looks whether callers without a proof may still be served, while they are.
SECURING_S: Final = 0.5
#: File of the data directory with the list as last read.
FILE: Final = "revoked.json"


class FollowedRevocations:
    """Teaches this process which credentials are revoked. An open process has nothing to learn."""

    def __init__(self, reactor: Any, directory: Path, now_s: Callable[[], float], every_s: float) -> None:
        """`directory` is the data directory; `every_s` the longest time between two reads."""
        credentials = process.own()
        self._kept = KeptValue(directory / FILE, "the list of revoked credentials")
        self._followed: FollowedZnode | None = None
        self._reactor = reactor
        self._looking: Any = None
        if process.is_securing():
            self._look()
        if credentials is None or not credentials.cluster:
            return
        path = revocation.path_of(credentials.cluster)
        self._followed = FollowedZnode(reactor, path, self._seen, now_s, every_s)
        with contextlib.suppress(OSError, ValueError):
            revocation.learn(self._kept.read())

    def follow(self, client: ZkClient) -> None:
        """Follow the list by this session, from now on."""
        if self._followed is not None:
            self._followed.follow(client)

    def stop(self) -> None:
        """Follow no more."""
        if self._followed is not None:
            self._followed.stop()
        if self._looking is not None and self._looking.active():
            self._looking.cancel()

    def _look(self) -> None:
        """Close the connections without a proof once the cluster has been secured (`rk secure --finish`)."""
        if process.is_securing():
            self._looking = self._reactor.callLater(SECURING_S, self._look)
        else:
            log.info("callers and peers without a proof are served no longer")
            revocation.recheck()

    def _seen(self, data: bytes, _version: int, _began_s: float) -> None:
        try:
            revocation.learn(data)
        except ValueError as error:
            log.error("the list of revoked credentials is damaged, the former one is used: {error}", error=error)
            return
        self._kept.keep(data)
