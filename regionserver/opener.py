"""The interface that a service built on RegionKeeper implements: it opens and closes regions.

A region opener owns the resources of a region: files, caches, connections. RegionKeeper calls the opener to open and to
close a region, and never opens a region that is open already. `prepare`, `open` and `close` run on worker threads and
may block; everything else runs on the reactor's thread and must not block.

    class Counters(RegionOpener):
        kind = "counters/1"
        def open(self, opening): self._counts[opening.region.region_id] = load(...)
        def close(self, region, replica): save(self._counts.pop(region.region_id))

An opener may also answer requests, at the server's registered address: it lists their types in `requests` and answers
them in `answer`, after `serving.admit`. docs/regionserver.md describes this in full; examples/counters.py is a service
to start from.

Every opener has a *kind*: the name of the service and the version of its data. Masters assign regions to servers of
their table's kind only, so one cluster can contain servers of several services (`regions/records/kinds.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from coord.errors import ConfigError
from regions.records.kinds import NOTHING, TABLETS_ALONE, check_kind, takes_tablets_alone
from regions.records.model import Incarnation, RegionRecord
from regionserver.errors import OwnerHeld as OwnerHeld
from regionserver.errors import RegionError as RegionError

if TYPE_CHECKING:
    from regionserver.request_gate import Serving
    from regionserver.shared_directory import SharedDirectory


class Opening:
    """A replica to be opened."""

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
        #: This server; its name goes into the region's lock file.
        self.server = server
        #: Fencing epoch of the master that sent the order.
        self.epoch = epoch
        #: A former owner whose session has certainly ended, so that its lock may be broken. None: break no lock.
        self.evict = evict
        #: Report that a long open makes progress, which extends its deadline. Thread-safe; may be called often.
        self.progress = progress
        #: zxid of the write that made this server the owner. A later opening of the replica has a higher token. Storage
        #: that checks the token (files, a database, another service) rejects former owners that wake up.
        self.token = token
        #: Version of the table's schema; the table's record has the schema (DD-07).
        self.schema_version = schema_version


class RegionOpener(ABC):
    """Opens and closes regions. One object serves all regions of a server, from several threads at once."""

    #: Kind of service, "counters/1". A subclass that adds requests or overrides `open` declares its own kind.
    kind: str = ""

    #: Types of the requests that `answer` takes: msgspec Structs with `tag=True` and names of their own.
    requests: tuple[type[msgspec.Struct], ...] = ()

    #: Directory that all servers of this kind share; its identity is checked before the server registers. None: the
    #: opener keeps no files.
    shared: SharedDirectory | None = None

    def attach(self, serving: Serving) -> None:  # noqa: B027 - optional
        """Receive the interface to the server; called once, before anything else."""

    def answer(self, request: msgspec.Struct) -> msgspec.Struct | Awaitable[msgspec.Struct]:
        """Answer one of `requests`, now or later. Call `serving.admit` first; reject with `RpcError`."""
        raise NotImplementedError(f"no answer to {type(request).__name__}")

    def stop(self) -> None:  # noqa: B027 - optional
        """Clean up before the process ends; all regions that could be closed are closed."""

    def prepare(self, openings: Sequence[Opening]) -> None:  # noqa: B027 - optional
        """Do work for many regions at once that would be expensive for each region alone. `open` is called for each of
        them afterwards.

        Optional. If `prepare` raises, it is called again for each opening separately.
        """

    @abstractmethod
    def open(self, opening: Opening) -> None:
        """Open the replica; return when it can serve. After an exception nothing of the replica may be held."""

    @abstractmethod
    def close(self, region: RegionRecord, replica: int) -> None:
        """Close the replica. After the return another server may open it at any moment.

        After an exception the replica counts as open and is closed again later.
        """

    def purge(self, table_id: str) -> int:  # noqa: ARG002 - what is kept is the service's own affair
        """Remove all data of a deleted table; return the number of its regions.

        Called in a thread, after the store has recorded that the table will never be restored. Repeated after a crash
        or a lost reply; then continue with the remaining data. Raise if a region may be open on any server. The default
        has no data.
        """
        return 0

    def split_key(self, region: RegionRecord) -> str:
        """Return the key of the row in the middle of an open region's bytes, the first key of the second half.

        Called in a thread. Raise RegionError if the region cannot be split. By default no region can.
        """
        raise RegionError(f"the regions of kind {self.kind} cannot be split or merged: {region.region_id}")

    def prepare_daughters(self, parents: Sequence[RegionRecord], daughters: Sequence[RegionRecord]) -> None:
        """Prepare the split or merge of open regions, so that the daughters' first open is fast.

        Called in a thread, while the regions are served. `open` of a daughter must not rely on it: the region's record
        names its parents (`RegionRecord.parents`), and the open takes over their data within the region's bounds. Raise
        RegionError if the regions cannot be split or merged. By default no region can.
        """
        del daughters
        self.split_key(parents[0])

    def remove_regions(self, table_id: str, region_ids: Sequence[str]) -> int:  # noqa: ARG002 - see `purge`
        """Remove the data of regions that were split or merged; return the number of removed regions.

        Called in a thread, after all daughters have been open. Repeated after a crash or a lost reply.
        """
        return 0

    def kept(self) -> tuple[list[str], list[str]]:
        """Return the ids of the tables with kept data, and the ids of the tables that are being removed."""
        return [], []

    def schema_changed(self, region: RegionRecord, replica: int, schema_version: int) -> None:  # noqa: B027 - optional
        """Receive a later schema version of an open replica's table; the table's record has the schema (DD-07).

        Runs on the reactor's thread: record the version and return. The server acknowledges the version as soon as the
        order arrives. A service that cannot continue with the former schema must stop doing so by itself.
        """

    def serving_changed(self, is_serving: bool) -> None:  # noqa: B027 - optional
        """Receive the begin or end of the lease. While the lease does not hold no request for a region may be answered.

        Check `Serving.holds` for every single request, too, because this call may be late, for example after the
        process was frozen.
        """


def kind_of(opener: RegionOpener) -> str:
    """Return the kind that `opener` declares.

    An inherited kind does not count if the class overrides `open` or `requests`: such a class is another service, and
    must not get the regions of its base class.

    Raises:
        ConfigError: the opener declares no kind, an invalid one, or that of servers without a shared directory.
    """
    kin = type(opener).__mro__
    owner = {name: next(at for at, one in enumerate(kin) if name in vars(one)) for name in ("kind", "open", "requests")}
    if owner["kind"] > min(owner["open"], owner["requests"]):
        name = type(opener).__name__
        raise ConfigError(
            f"the region opener {name} declares no kind of service: add a line such as"
            f' kind = "{name.lower()}/1" to the class'
        )
    try:
        check_kind(opener.kind)
    except ValueError as error:
        raise ConfigError(f"the region opener {type(opener).__name__}: {error}") from error
    if takes_tablets_alone(opener.kind) and type(opener) is not TabletsAloneOpener:
        # Masters would place key-value tablets on a server of this kind.
        raise ConfigError(
            f"the region opener {type(opener).__name__} declares kind {opener.kind!r}, which is reserved for key-value"
            " servers without a shared directory: give the service another name"
        )
    return opener.kind


class TabletsAloneOpener(RegionOpener):
    """The opener of a server without a shared directory, which takes only replicas of tablets.

    Masters assign no shared region to its kind. The opener refuses an order that arrives nevertheless.
    """

    kind = TABLETS_ALONE

    def open(self, opening: Opening) -> None:
        """Refuse."""
        raise RegionError(f"this server has no shared directory, and {opening.region.region_id} is no tablet")

    def close(self, region: RegionRecord, replica: int) -> None:
        """Do nothing, because no region is open."""


class NothingOpener(RegionOpener):
    """Opens and closes nothing; benchmarks use it to measure the assignment alone."""

    kind = NOTHING

    def open(self, opening: Opening) -> None:
        """Do nothing."""

    def close(self, region: RegionRecord, replica: int) -> None:
        """Do nothing."""
