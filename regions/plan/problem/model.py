"""What a planner takes and gives: `Snapshot`, `Params`, `Plan`, in columns.

A snapshot is four tables of columns, as they come from the store or from files; nothing in it has been checked yet
(`problem.encode` does that, and counts what it sets aside). Columns are numpy arrays of equal length; strings are
Python `str` in object arrays, so that a million ids cost no fixed-width padding. A missing number is NaN in a float
column and `MISSING` in an integer column; a missing string is "".

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

#: Seconds left until the plan is wanted. The clock belongs to the caller: planning itself knows none.
Deadline = Callable[[], float]


class PlanError(CoordError):
    """No plan can be made from this input, or with what this machine has; nothing was written."""


class BadInput(PlanError):
    """The input lacks a table, a column or a usable parameter, or a file cannot be read."""


class NoServers(PlanError):
    """Not one group has a live server that may take regions."""


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
    """How to weigh and how strictly to balance (the content of `params.json`)."""

    #: Worth of a byte that does not move against a byte read locally; kept to three decimals.
    lambda_move: float = 0.5
    #: Balance tolerance: 0 keeps every server between floor and ceiling of its quota, 0.1 allows a tenth beside it.
    slop: float = 0.0
    #: Replicas that a server may hold of one table beyond the ceiling of its share.
    table_slack: int = 1
    #: Names the snapshot in the manifest; not used for planning.
    snapshot_id: str = ""
    #: Fencing epoch of the master that asked; copied into the manifest, so that a late result can be refused.
    master_epoch: int = 0

    def checked(self) -> Params:
        """This, or BadInput naming the value that is out of range."""
        if not 0 <= self.lambda_move <= 100:
            raise BadInput(f"params: lambda_move must be between 0 and 100, not {self.lambda_move}")
        if not 0 <= self.slop <= 10:
            raise BadInput(f"params: slop must be between 0 and 10, not {self.slop}")
        if not 0 <= self.table_slack <= 1_000_000:
            raise BadInput(f"params: table_slack must be between 0 and 1000000, not {self.table_slack}")
        return self


def texts(values: Iterable[str | None]) -> Texts:
    """A string column; None becomes ""."""
    items = ["" if value is None else value for value in values]
    column = np.empty(len(items), dtype=object)
    column[:] = items
    return column


def ints(values: Iterable[int | None]) -> Ints:
    """An integer column; None becomes MISSING."""
    return np.array([MISSING if value is None else value for value in values], dtype=np.int64)


def floats(values: Iterable[float | None]) -> Floats:
    """A float column; None becomes NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def bools(values: Iterable[bool | None]) -> Bools:
    """A truth column; None becomes False."""
    return np.array([bool(value) for value in values], dtype=np.bool_)


class RegionRow(msgspec.Struct, frozen=True):
    """One region, as `Snapshot.of` takes it."""

    region_id: str
    table_id: str
    size_bytes: int = 0
    replicas: int = 1
    grp: str = ""
    start_key: str = ""
    load: float = 0.0


class ServerRow(msgspec.Struct, frozen=True):
    """One live server, as `Snapshot.of` takes it. `server_id` is what the plan's rows will name."""

    server_id: str
    host: str
    rack: str = "default"
    weight: float | None = 1.0
    grp: str = ""
    draining: bool = False


class BlockRow(msgspec.Struct, frozen=True):
    """Bytes of a region that lie on a host."""

    region_id: str
    host: str
    bytes: int | None


class LastRow(msgspec.Struct, frozen=True):
    """Where a replica was before."""

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
        """The same with other block rows."""
        return Snapshot(self.regions, self.servers, blocks, self.last)

    @classmethod
    def of(
        cls,
        regions: Iterable[RegionRow],
        servers: Iterable[ServerRow],
        blocks: Iterable[BlockRow] = (),
        last: Iterable[LastRow] = (),
    ) -> Snapshot:
        """A snapshot from rows: for the master's records, and for tests."""
        rs, ss, bs, ls = list(regions), list(servers), list(blocks), list(last)
        return cls(
            RegionColumns(
                texts(r.region_id for r in rs),
                texts(r.table_id for r in rs),
                texts(r.start_key for r in rs),
                ints(r.size_bytes for r in rs),
                floats(r.load for r in rs),
                ints(r.replicas for r in rs),
                texts(r.grp for r in rs),
            ),
            ServerColumns(
                texts(s.server_id for s in ss),
                texts(s.host for s in ss),
                texts(s.rack for s in ss),
                floats(s.weight for s in ss),
                texts(s.grp for s in ss),
                bools(s.draining for s in ss),
            ),
            Blocks(texts(b.region_id for b in bs), texts(b.host for b in bs), ints(b.bytes for b in bs)),
            Last(texts(p.region_id for p in ls), ints(p.replica for p in ls), texts(p.server_id for p in ls)),
        )


class PlanRows:
    """The plan's rows in columns, sorted by (region_id, replica); iterating gives (region_id, replica, server_id)."""

    def __init__(self, region_id: Texts, replica: Ints, server_id: Texts) -> None:
        self.region_id = region_id
        self.replica = replica
        self.server_id = server_id

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, str]]) -> PlanRows:
        """Columns from rows in any order."""
        ordered = sorted(rows)
        return cls(texts(r[0] for r in ordered), ints(r[1] for r in ordered), texts(r[2] for r in ordered))

    def __len__(self) -> int:
        return len(self.region_id)

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        return zip(self.region_id.tolist(), self.replica.tolist(), self.server_id.tolist(), strict=True)


class Stats(msgspec.Struct, kw_only=True):
    """What was found in the input and what the plan is worth; the manifest's `stats`. Bytes unless named otherwise."""

    engine: str = ""
    shards: int = 1
    regions: int = 0
    replicas: int = 0
    servers: int = 0
    eligible_servers: int = 0
    groups: int = 0
    tables: int = 0
    #: Rows set aside, by reason (`problem.REASONS`); only reasons that occurred.
    ignored: dict[str, int] = msgspec.field(default_factory=dict)
    #: Regions without any place, by group, with the reason.
    unassignable: dict[str, int] = msgspec.field(default_factory=dict)
    #: Replicas that were asked for and cannot exist, because their group has fewer servers.
    under_replicated: int = 0
    #: More than a twentieth of the block rows was unusable: locality in this plan is doubtful.
    degraded: bool = False
    #: Servers whose quota had to leave its weight's share, because a rack may hold a region only once.
    quota_adjusted: int = 0
    #: Tables that may hold more of a server than the ceiling of their share and the slack, because their own replicas
    #: could not stand on distinct racks otherwise.
    tables_raised: int = 0
    #: Replicas placed by their benefit, as one of a class of equals, and by moving another replica out of the way.
    placed_by_benefit: int = 0
    placed_by_class: int = 0
    placed_by_chain: int = 0
    #: Placed replicas that were moved to make the hard rules hold.
    chain_moves: int = 0
    #: Broken hard rules, as the verifier counted them; and replicas that share a rack because there are too few.
    violations: int = 0
    racks_shared: int = 0
    #: J of the plan: bytes read locally + lambda x bytes not moved; and the two parts.
    value: float = 0.0
    local_bytes: int = 0
    stay_bytes: int = 0
    #: The most that any plan of this input can be worth, where the engine has proven it (`flow`); 0: not known.
    value_max: float = 0.0
    #: Bytes of replicas that had a live place and leave it.
    moved_bytes: int = 0


class Plan:
    """Where every replica goes; `digest` is the SHA-256 of the sorted rows (`digest.plan_digest`)."""

    def __init__(self, rows: PlanRows, digest: str, stats: Stats) -> None:
        self.rows = rows
        self.digest = digest
        self.stats = stats

    def by_region(self) -> Mapping[str, list[str]]:
        """Server ids of each region, replica 0 first."""
        places: dict[str, list[str]] = {}
        for region_id, _, server_id in self.rows:
            places.setdefault(region_id, []).append(server_id)
        return places


def params_from_json(data: bytes) -> Params:
    """Read `params.json`; unknown keys are ignored, a wrong type is BadInput."""
    try:
        return msgspec.json.decode(data, type=Params).checked()
    except msgspec.MsgspecError as error:
        raise BadInput(f"params.json: {error}") from error


def to_builtins(value: Any) -> Any:
    """Plain dicts and lists of a struct, for JSON."""
    return msgspec.to_builtins(value)
