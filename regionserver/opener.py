"""What opens and closes regions: the interface that a service built on RegionKeeper implements.

A region opener owns what is behind a region: files, caches, connections. RegionKeeper tells it when to take a region
and when to let go, and never asks it to open a region that it has open. `prepare`, `open` and `close` run on worker
threads and may block; everything else runs on the reactor's thread and must not.

    class Counters(RegionOpener):
        kind = "counters/1"
        def open(self, opening): self._counts[opening.region.region_id] = load(...)
        def close(self, region, replica): save(self._counts.pop(region.region_id))

An opener may also answer requests, at the address under which the server is registered: it names their types in
`requests` and answers them in `answer`, after `serving.admit`. docs/regionserver.md tells the whole story, and
examples/counters.py is a service to copy.

Every opener has a *kind*: a name of the service and the version of what it reads and writes. Masters give a server the
regions of tables of its kind alone, so that servers of several services live in one cluster
(`regions/records/kinds.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from coord.errors import ConfigError
from regions.records.kinds import NOTHING, check_kind
from regions.records.model import Incarnation, RegionRecord
from regionserver.errors import OwnerHeld as OwnerHeld
from regionserver.errors import RegionError as RegionError

if TYPE_CHECKING:
    from regionserver.request_gate import Serving
    from regionserver.shared_directory import SharedDirectory


class Opening:
    """One replica to be opened."""

    def __init__(
        self,
        region: RegionRecord,
        replica: int,
        server: Incarnation,
        epoch: int,
        evict: Incarnation | None,
        progress: Callable[[], None],
        token: int = 0,
        schema_version: int = 0,
    ) -> None:
        self.region = region
        self.replica = replica
        #: This server: whoever looks at the region's files should find this name.
        self.server = server
        #: Fencing epoch of the master that ordered it.
        self.epoch = epoch
        #: A former owner whose session is certainly over; its hold may be broken. None: break nobody's.
        self.evict = evict
        #: Say that a long open gets on, so that its deadline is extended. From any thread, as often as you like.
        self.progress = progress
        #: zxid of the write that made this server the opener: a later opening of the replica has a higher one. Whatever
        #: checks it (files, a database, another service) is safe from former owners that wake up.
        self.token = token
        #: Version of the table's schema, which is in the table's record (DD-07).
        self.schema_version = schema_version


class RegionOpener(ABC):
    """Opens and closes regions. One object serves all regions of a server, from several threads at once."""

    #: Kind of service, "counters/1". A class that adds requests, or another `open`, names a kind of its own.
    kind: str = ""

    #: Types of the requests that `answer` takes: msgspec Structs with `tag=True` and names of their own.
    requests: tuple[type[msgspec.Struct], ...] = ()

    #: The directory that all servers of this kind share: its identity is compared before the server registers.
    #: None: the opener keeps nothing in files.
    shared: SharedDirectory | None = None

    def attach(self, serving: Serving) -> None:  # noqa: B027 - optional
        """Called once, before anything else: what the opener may ask of its server."""

    def answer(self, request: msgspec.Struct) -> msgspec.Struct | Awaitable[msgspec.Struct]:
        """Answer one of `requests`, now or later. Refuse by `RpcError`; call `serving.admit` first."""
        raise NotImplementedError(f"nobody answers {type(request).__name__}")

    def stop(self) -> None:  # noqa: B027 - optional
        """The process ends; all regions that could be closed are closed."""

    def prepare(self, openings: Sequence[Opening]) -> None:  # noqa: B027 - optional
        """Do for many regions at once what is dear for each, before `open` is called for every one of them.

        Optional. If it raises, each opening is prepared by itself.
        """

    @abstractmethod
    def open(self, opening: Opening) -> None:
        """Return when the replica can serve. Raises anything, and then nothing of it may be held."""

    @abstractmethod
    def close(self, region: RegionRecord, replica: int) -> None:
        """Return when nothing of the replica is held any more: another server may open it the next moment.

        Raises anything: the replica then counts as open, and will be closed again.
        """

    def purge(self, table_id: str) -> int:  # noqa: ARG002 - what is kept is the service's own affair
        """Remove everything that is kept of a deleted table; return how many regions that were.

        Called in a thread, and only when the store says that the table never comes back. Repeated after a crash or a
        lost answer: go on with what is left. Raise when a region may be open anywhere. By default nothing is kept.
        """
        return 0

    def kept(self) -> tuple[list[str], list[str]]:
        """Return the ids of the tables of which something is kept, and of those that are being removed."""
        return [], []

    def schema_changed(self, region: RegionRecord, replica: int, schema_version: int) -> None:  # noqa: B027 - optional
        """Take note of a later schema version of an open replica's table; the schema is in the table's record (DD-07).

        On the reactor's thread: take note, and return. The server has told the master that it follows as soon as the
        order is here; a service that cannot go on under the former schema has to stop it by itself.
        """

    def serving_changed(self, is_serving: bool) -> None:  # noqa: B027 - optional
        """The lease began or ended. Between False and True no request for any region may be answered.

        For each single request ask `Serving.holds` as well: this call may come late, for instance after the process
        was frozen.
        """


def kind_of(opener: RegionOpener) -> str:
    """Return the kind that `opener` declares.

    A kind that was inherited together with another `open` or other `requests` does not count: the class that has these
    is another service, and would get the regions of the one that it derives from.

    Raises:
        ConfigError: it declares none, or a text that is no kind.
    """
    kin = type(opener).__mro__
    owner = {name: next(at for at, one in enumerate(kin) if name in vars(one)) for name in ("kind", "open", "requests")}
    if owner["kind"] > min(owner["open"], owner["requests"]):
        name = type(opener).__name__
        raise ConfigError(
            f"the region opener {name} declares no kind of service: give the class a line such as"
            f' kind = "{name.lower()}/1"'
        )
    try:
        check_kind(opener.kind)
    except ValueError as error:
        raise ConfigError(f"the region opener {type(opener).__name__}: {error}") from error
    return opener.kind


class NothingOpener(RegionOpener):
    """Opens and closes nothing at all: what is left is the cost of the assignment itself, for benchmarks."""

    kind = NOTHING

    def open(self, opening: Opening) -> None:
        """Nothing."""

    def close(self, region: RegionRecord, replica: int) -> None:
        """Nothing."""
