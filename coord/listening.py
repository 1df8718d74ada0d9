"""Listening on a configured address: a taken port is one sentence and no traceback."""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort

from coord.errors import ConfigError


class Listener(Protocol):
    """What listens: an `RpcServer`, an `AdminHttp`."""

    def listen(self, reactor: Any, host: str, port: int) -> IListeningPort: ...


def listen(server: Listener, reactor: Any, what: str, host: str, port: int) -> IListeningPort:
    """Have `server` listen on `host`:`port`; `what` names the address in the error.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        return server.listen(reactor, host, port)
    except CannotListenError as error:
        reason = getattr(error.socketError, "strerror", None) or error.socketError
        raise ConfigError(f"{what} {host}:{port} cannot be used: {reason}") from error
