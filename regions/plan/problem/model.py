"""Input and output of a planner: `Snapshot`, `Params`, `Plan`, in columns.

A snapshot is four tables of columns, as they come from the store or from files; nothing in it has been checked yet
(`problem.encode` checks the rows, and counts those that it sets aside). Columns are numpy arrays of equal length;
strings are Python `str` in object arrays, so that a million ids cost no fixed-width padding. A missing number is NaN in
a float column and `MISSING` in an integer column; a missing string is "".

    regions  region_id table_id start_key size_bytes load replicas grp
    servers  server_id host rack weight grp draining          live servers only; a host may carry several
    blocks   region_id host bytes                             any number of rows per (region, host): they add up
    last     region_id replica server_id                      the server may be dead
    plan     region_id replica server_id                      one row per replica, sorted by (region_id, replica)
"""

# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from coord.errors import CoordError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]

#: An integer that the input did not give (a null in a file).
MISSING: Final = -(2**62)

#: Returns the seconds left for planning. The caller owns the clock: planning itself reads none.
Deadline = Callable[[], float]


class PlanError(CoordError):
    """No plan can be made from this input or on this machine. Nothing was written."""


class BadInput(PlanError):
    """The input lacks a table, a column or a usable parameter, or a file cannot be read."""


class UnusableOutput(PlanError):
    """The directory of the plan cannot be written, or it contains a plan already."""


class NoServers(PlanError):
    """No group has a live server that may take regions."""


class ConflictingRegion(PlanError):
    """Rows of one region id disagree with each other.

    `region_ids` names the first of them, ascending; `total` says how many there are.
    """

    def __init__(self, region_ids: list[str], total: int) -> None:
        self.region_ids = region_ids
        self.total = total
        super().__init__(f"{total} region ids have rows that differ: {', '.join(region_ids)}")


class BadPlan(PlanError):
    """A stored plan is incomplete, or its bytes are not the ones that its manifest names."""


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """Weights and limits of a plan (the content of `params.json`)."""

    #: Value of a byte that does not move, relative to a byte read locally; kept to three decimals.
    lambda_move: float = 0.5
    #: Balance tolerance: 0 keeps every server between floor and ceiling of its quota, 0.1 allows a tenth more or less.
    slop: float = 0.0
    #: Number of replicas of one table that a server may hold beyond the ceiling of its share.
    table_slack: int = 1
    #: Names the snapshot in the manifest; not used for planning.
    snapshot_id: str = ""
    #: Fencing epoch of the requesting master; copied into the manifest, so that a late result can be rejected.
    master_epoch: int = 0

    def checked(self) -> Params:
        """Return these parameters. Raise BadInput with the value that is out of range."""
        if not 0 <= self.lambda_move <= 100:
            raise BadInput(f"params: lambda_move must be between 0 and 100, not {self.lambda_move}")
        if not 0 <= self.slop <= 10:
            raise BadInput(f"params: slop must be between 0 and 10, not {self.slop}")
        if not 0 <= self.table_slack <= 1_000_000:
            raise BadInput(f"params: table_slack must be between 0 and 1000000, not {self.table_slack}")
        return self


def texts(values: Iterable[str | None]) -> Texts:
    """Return a string column; None becomes ""."""
    items = ["" if value is None else value for value in values]
    column = np.empty(len(items), dtype=object)
    column[:] = items
    return column


def ints(values: Iterable[int | None]) -> Ints:
    """Return an integer column; None becomes MISSING."""
    return np.array([MISSING if value is None else value for value in values], dtype=np.int64)


def floats(values: Iterable[float | None]) -> Floats:
    """Return a float column; None becomes NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def bools(values: Iterable[bool | None]) -> Bools:
    """Return a Boolean column; None becomes False."""
    return np.array([bool(value) for value in values], dtype=np.bool_)


class RegionRow(msgspec.Struct, frozen=True):
    """One region, as input of `Snapshot.of`."""

    region_id: str
    table_id: str
    size_bytes: int = 0
    replicas: int = 1
    grp: str = ""
    start_key: str = ""
    load: float = 0.0


class ServerRow(msgspec.Struct, frozen=True):
    """One live server, as input of `Snapshot.of`. The plan's rows name the server by `server_id`."""

    server_id: str
    host: str
    rack: str = "default"
    weight: float | None = 1.0
    grp: str = ""
    draining: bool = False


class BlockRow(msgspec.Struct, frozen=True):
    """Bytes of a region that are stored on a host."""

    region_id: str
    host: str
    bytes: int | None


class LastRow(msgspec.Struct, frozen=True):
    """Former place of a replica."""

    region_id: str
    replica: int
    server_id: str


class RegionColumns:
    """The `regions` table; columns of equal length."""

    def __init__(
        self,
        region_id: Texts,
        table_id: Texts,
        start_key: Texts,
        size_bytes: Ints,
        load: Floats,
        replicas: Ints,
        grp: Texts,
    ) -> None:
        self.region_id = region_id
        self.table_id = table_id
        self.start_key = start_key
        self.size_bytes = size_bytes
        self.load = load
        self.replicas = replicas
        self.grp = grp

    def __len__(self) -> int:
        return len(self.region_id)


class ServerColumns:
    """The `servers` table; columns of equal length."""

    def __init__(self, server_id: Texts, host: Texts, rack: Texts, weight: Floats, grp: Texts, draining: Bools) -> None:
        self.server_id = server_id
        self.host = host
        self.rack = rack
        self.weight = weight
        self.grp = grp
        self.draining = draining

    def __len__(self) -> int:
        return len(self.server_id)


class Blocks:
    """The `blocks` table; columns of equal length."""

    def __init__(self, region_id: Texts, host: Texts, bytes: Ints) -> None:  # noqa: A002  the schema's own name
        self.region_id = region_id
        self.host = host
        self.bytes = bytes

    def __len__(self) -> int:
        return len(self.region_id)


class Last:
    """The `last` table; columns of equal length."""

    def __init__(self, region_id: Texts, replica: Ints, server_id: Texts) -> None:
        self.region_id = region_id
        self.replica = replica
        self.server_id = server_id

    def __len__(self) -> int:
        return len(self.region_id)


class Snapshot:
    """Everything that a plan depends on, unchecked, in any row order."""

    def __init__(self, regions: RegionColumns, servers: ServerColumns, blocks: Blocks, last: Last) -> None:
        self.regions = regions
        self.servers = servers
        self.blocks = blocks
        self.last = last

    def with_blocks(self, blocks: Blocks) -> Snapshot:
        """Return this snapshot with other block rows."""
        return Snapshot(self.regions, self.servers, blocks, self.last)

    @classmethod
    def of(
        cls,
        regions: Iterable[RegionRow],
        servers: Iterable[ServerRow],
        blocks: Iterable[BlockRow] = (),
        last: Iterable[LastRow] = (),
    ) -> Snapshot:
        """Build a snapshot from rows: for the master's records, and for tests."""
        rs, ss, bs, ls = list(regions), list(servers), list(blocks), list(last)
        return cls(
            RegionColumns(
                texts([r.region_id for r in rs]),
                texts([r.table_id for r in rs]),
                texts([r.start_key for r in rs]),
                ints([r.size_bytes for r in rs]),
                floats([r.load for r in rs]),
                ints([r.replicas for r in rs]),
                texts([r.grp for r in rs]),
            ),
            ServerColumns(
                texts([s.server_id for s in ss]),
                texts([s.host for s in ss]),
                texts([s.rack for s in ss]),
                floats([s.weight for s in ss]),
                texts([s.grp for s in ss]),
                bools([s.draining for s in ss]),
            ),
            Blocks(texts([b.region_id for b in bs]), texts([b.host for b in bs]), ints([b.bytes for b in bs])),
            Last(texts([p.region_id for p in ls]), ints([p.replica for p in ls]), texts([p.server_id for p in ls])),
        )


class PlanRows:
    """The plan's rows in columns, sorted by (region_id, replica); iterating gives (region_id, replica, server_id)."""

    def __init__(self, region_id: Texts, replica: Ints, server_id: Texts) -> None:
        self.region_id = region_id
        self.replica = replica
        self.server_id = server_id

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, str]]) -> PlanRows:
        """Build columns from rows in any order."""
        ordered = sorted(rows)
        return cls(texts(r[0] for r in ordered), ints(r[1] for r in ordered), texts(r[2] for r in ordered))

    def __len__(self) -> int:
        return len(self.region_id)

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        return zip(self.region_id.tolist(), self.replica.tolist(), self.server_id.tolist(), strict=True)


class Stats(msgspec.Struct, kw_only=True):
    """Findings about the input, and the plan's value; the manifest's `stats`. Bytes unless named otherwise."""

    engine: str = ""
    shards: int = 1
    regions: int = 0
    replicas: int = 0
    servers: int = 0
    eligible_servers: int = 0
    groups: int = 0
    tables: int = 0
    #: Rows that were ignored, by reason (`problem.REASONS`); only reasons that occurred.
    ignored: dict[str, int] = msgspec.field(default_factory=dict)
    #: Regions without any place, by group, with the reason.
    unassignable: dict[str, int] = msgspec.field(default_factory=dict)
    #: Replicas that were asked for but cannot exist, because their group has too few servers.
    under_replicated: int = 0
    #: More than a twentieth of the block rows was unusable, so locality in this plan is doubtful.
    degraded: bool = False
    #: Servers whose quota differs from their share by weight, because a rack may hold a region only once.
    quota_adjusted: int = 0
    #: Tables that may exceed the ceiling of their share and the slack on some server, because their replicas could not
    #: be on distinct racks otherwise.
    tables_raised: int = 0
    #: Replicas placed by their benefit, as one of a class of equals, and by moving another replica out of the way.
    placed_by_benefit: int = 0
    placed_by_class: int = 0
    placed_by_chain: int = 0
    #: Placed replicas that were moved to make the hard rules hold.
    chain_moves: int = 0
    #: Broken hard rules, counted by the verifier; and replicas that share a rack because there are too few racks.
    violations: int = 0
    racks_shared: int = 0
    #: J of the plan: bytes read locally + lambda x bytes that do not move; and the two parts.
    value: float = 0.0
    local_bytes: int = 0
    stay_bytes: int = 0
    #: Upper bound of the value of any plan for this input, if the engine has proven one (`flow`); 0 if unknown.
    value_max: float = 0.0
    #: Bytes of replicas that had a live place and lose it.
    moved_bytes: int = 0


class Plan:
    """A server for every replica; `digest` is the SHA-256 of the sorted rows (`digest.plan_digest`)."""

    def __init__(self, rows: PlanRows, digest: str, stats: Stats) -> None:
        self.rows = rows
        self.digest = digest
        self.stats = stats

    def by_region(self) -> Mapping[str, list[str]]:
        """Return the server ids of each region, replica 0 first."""
        places: dict[str, list[str]] = {}
        for region_id, _, server_id in self.rows:
            places.setdefault(region_id, []).append(server_id)
        return places


def params_from_json(data: bytes) -> Params:
    """Read `params.json`. Ignore unknown keys; raise BadInput for a wrong type."""
    try:
        return msgspec.json.decode(data, type=Params).checked()
    except msgspec.MsgspecError as error:
        raise BadInput(f"params.json: {error}") from error


def to_builtins(value: Any) -> Any:
    """Return a struct as plain dicts and lists, for JSON."""
    return msgspec.to_builtins(value)
