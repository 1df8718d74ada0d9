"""Common parts of all daemons: listening on an address, stopping on signals."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
from typing import Any, Final, Protocol

from twisted.internet.error import CannotListenError, ReactorNotRunning
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from coord.errors import ConfigError

log = Logger()

#: Thresholds of the garbage collector for a daemon with up to millions of long-lived objects, few of which are part of
#: a cycle. A collection of the two youngest generations visits some 200,000 objects in less than 20 ms. A full
#: collection takes a second for 100,000 regions, and the daemon answers nobody meanwhile. So full collections are rare.
GC_THRESHOLDS: Final = (50_000, 3, 10_000)


class ListeningReactor(Protocol):
    """The part of a reactor that accepts connections."""

    def listenTCP(self, port: int, factory: Any, backlog: int = ..., interface: str = ...) -> IListeningPort: ...


class ListeningServer(Protocol):
    """A server that can listen: an `RpcServer`, an `AdminHttp`."""

    def listen(self, reactor: Any, host: str, port: int) -> IListeningPort: ...


def listen(server: ListeningServer, reactor: Any, what: str, host: str, port: int) -> IListeningPort:
    """Let `server` listen on `host`:`port`; `what` names the address in the error.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        return server.listen(reactor, host, port)
    except CannotListenError as error:
        reason = getattr(error.socketError, "strerror", None) or error.socketError
        raise ConfigError(f"cannot listen on {what} {host}:{port}: {reason}") from error


def allow_many_files() -> None:
    """Raise the limit of open files as far as the system allows: connections and open regions hold descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_rarely() -> None:
    """Set the thresholds of a daemon's garbage collector. Call this before the daemon loads its data."""
    gc.set_threshold(*GC_THRESHOLDS)


def keep_new_objects() -> None:
    """Move all objects to the oldest generation of the garbage collector, without a look at them.

    Call this after each part of a long load: the objects stay, and the collector would look at each of them twice.
    Garbage in cycles from the time of the load is found only by a collection of all objects.
    """
    gc.freeze()
    gc.unfreeze()


def descriptors() -> int:
    """Return the number of files that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def stop_on_signals(reactor: Any) -> None:
    """Let SIGTERM and SIGINT stop `reactor`.

    A second signal while the reactor is stopping changes nothing. Twisted's own handler would log a traceback.
    """

    def stop() -> None:
        try:
            reactor.stop()
        except ReactorNotRunning:
            log.info("ignored a signal: the process is stopping already")

    def on_signal(*_: object) -> None:
        reactor.callFromThread(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        reactor.callWhenRunning(signal.signal, number, on_signal)
