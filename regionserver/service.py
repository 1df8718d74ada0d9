"""A region server as a process: its resource limits, log, signals and exit status."""

from __future__ import annotations

import sys

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger

from coord import logs
from coord.daemon import allow_many_files, collect_rarely, stop_on_signals
from coord.env_os import run_in_slices, share_processors
from coord.errors import ConfigError
from coord.hosts import is_loopback
from coord.peers.reactor import install
from coord.security import process
from coord.security.principal import SERVER, Principal
from regionserver.config import ServerSettings
from regionserver.kv.service import KvRegions
from regionserver.opener import NothingOpener, RegionOpener, TabletsAloneOpener
from regionserver.server import RegionServer
from regionserver.session.instance import Instance
from regionserver.storage.directory import DirectoryOpener
from regionserver.tablets.hosting import tablets_of
from regionserver.workers import FOREGROUND_SLICE_S

__all__ = ["ServerSettings", "run"]

log = Logger()


def built_in(settings: ServerSettings) -> RegionOpener:
    """Return the opener that `settings` names. Raise ConfigError if the shared directory is missing or unusable."""
    if settings.opener == "none":
        return NothingOpener()
    if settings.shared_dir is None:
        if settings.opener != "kv" or settings.peer_address is None:
            why = "" if settings.opener == "kv" else f", which opener {settings.opener} is not for"
            raise ConfigError(
                "a server without --shared-dir takes tablets alone"
                + (why or ", and this one has no --peer-address for them")
            )
        return TabletsAloneOpener()
    return KvRegions(settings.shared_dir) if settings.opener == "kv" else DirectoryOpener(settings.shared_dir)


def run(settings: ServerSettings, opener: RegionOpener | None = None) -> int:
    """Run a region server until a signal arrives; return the exit status.

    `opener` opens and closes the regions; by default it is the built-in opener that `settings.opener` names.

    Raises:
        ConfigError: the server was not started; the message is one line for the operator.
    """
    allow_many_files()
    collect_rarely()
    if is_loopback(settings.host):
        # Clients and other members share this machine. Do this before any thread starts, because threads inherit it.
        share_processors()
    run_in_slices(FOREGROUND_SLICE_S)
    if opener is None:
        opener = built_in(settings)
    instance = Instance.open(settings.data_dir)
    process.use_daemon(settings.certs_dir, Principal(SERVER, instance.uuid))
    # A turn of this reactor handles all events of one poll, so the tablets of a server write their log once per poll.
    reactor = install()
    # By default a worker between two system calls waits 5 ms for a busy reactor to release the interpreter.
    sys.setswitchinterval(0.0005)
    deaths: list[str] = []

    def died(reason: str) -> None:
        if not deaths:
            log.critical("ending this process: {reason}", reason=reason)
            deaths.append(reason)
            reactor.callWhenRunning(reactor.stop)

    # An exception in a watcher of a socket is a bug, and its connection is not served any more.
    reactor.at_fault(lambda error: died(f"a bug: {error!r}"))
    tablets = None if settings.peer_address is None else tablets_of(reactor, settings, instance, died)
    server = RegionServer(reactor, settings, instance, opener, died=died, tablets=tablets)
    server.start()
    logs.begin(reactor)
    reactor.addSystemEventTrigger("before", "shutdown", lambda: None if deaths else ensureDeferred(server.stop()))
    stop_on_signals(reactor)
    reactor.run()
    instance.close()
    return 1 if deaths else 0
