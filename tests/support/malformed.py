"""Malformed plan inputs, with the expected result of each source and engine."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from regions.plan import BlockRow, LastRow, RegionRow, ServerRow, Snapshot

TWO: Final = [ServerRow("s1", "h1"), ServerRow("s2", "h2")]


class Dirty(NamedTuple):
    """One row of the table: `stats` are the expected counts, `says` is the text for the operator, `error` the reason
    without a plan."""

    name: str
    snapshot: Snapshot
    rows: int
    stats: dict[str, Any]
    says: tuple[str, ...]
    error: str = ""


DIRTY: Final = (
    Dirty(
        "no server in a group",
        Snapshot.of([RegionRow("a", "t"), RegionRow("b", "t", grp="x"), RegionRow("c", "t", grp="x")], TWO),
        1,
        {"unassignable": {"x": 2}},
        ("without any place: 2 regions of group 'x', which has no server",),
    ),
    Dirty(
        "no server at all",
        Snapshot.of([RegionRow("a", "t")], [ServerRow("s1", "h", draining=True), ServerRow("s2", "h", weight=0.0)]),
        0,
        {},
        ("no plan: none of 2 live servers may take regions",),
        "NoServers",
    ),
    Dirty(
        "fewer servers than replicas",
        Snapshot.of([RegionRow("a", "t", replicas=5)], TWO),
        2,
        {"under_replicated": 3},
        ("3 replicas cannot exist: there are fewer servers than required replicas",),
    ),
    Dirty(
        "fewer racks than replicas",
        Snapshot.of(
            [RegionRow("a", "t", replicas=3)], [ServerRow(f"s{n}", f"h{n}", "a" if n < 2 else "b") for n in range(4)]
        ),
        3,
        {"racks_shared": 1},
        ("1 replica shares a rack with another of its region: there are too few racks",),
    ),
    Dirty(
        "unusable block rows",
        Snapshot.of(
            [RegionRow("a", "t", 100)],
            TWO,
            [
                BlockRow("a", "h2", 10),
                BlockRow("a", "elsewhere", 10),
                BlockRow("nothing", "h1", 10),
                BlockRow("a", "h1", 0),
                BlockRow("a", "h1", -7),
                BlockRow("a", "h1", None),
            ],
        ),
        1,
        {"ignored": {"block_bytes": 3, "block_host": 1, "block_region": 1}, "degraded": True, "local_bytes": 10},
        (
            "3 x block row whose bytes are missing or <= 0",
            "1 x block row on a host without a live server",
            "1 x block row of an unknown region",
            "degraded: more than a twentieth of the block rows",
        ),
    ),
    Dirty(
        "few unusable block rows",
        Snapshot.of([RegionRow("a", "t", 900)], TWO, [BlockRow("a", "h2", 10)] * 39 + [BlockRow("a", "h9", 10)]),
        1,
        {"ignored": {"block_host": 1}, "degraded": False, "local_bytes": 390},
        ("1 x block row on a host without a live server",),
    ),
    Dirty(
        "more bytes than the region has",
        Snapshot.of([RegionRow("a", "t", 100)], TWO, [BlockRow("a", "h1", 60)] * 3 + [BlockRow("a", "h2", 90)]),
        1,
        {"ignored": {}, "local_bytes": 100},
        ("read locally: 0.0% before, 100.0% after",),
    ),
    Dirty(
        "a region twice, alike",
        Snapshot.of([RegionRow("a", "t", 5), RegionRow("a", "t", 5), RegionRow("b", "t", 5)], TWO),
        2,
        {"ignored": {"region_duplicate": 1}},
        ("1 x further identical row of a region",),
    ),
    Dirty(
        "a region twice, differing",
        Snapshot.of([RegionRow("a", "t", 5), RegionRow("a", "t", 6), RegionRow("b", "t", 5)], TWO),
        0,
        {},
        ("no plan: 1 region ids have rows that differ: a",),
        "ConflictingRegion",
    ),
    Dirty(
        "former places that count for nothing",
        Snapshot.of(
            [RegionRow(r, "t", 10) for r in "abcd"],
            [*TWO, ServerRow("s3", "h3", draining=True)],
            (),
            [
                LastRow("a", 0, "s2"),
                LastRow("b", 0, "gone"),
                LastRow("c", 0, "s3"),
                LastRow("d", 0, "s2"),
                LastRow("d", 0, "s1"),
                LastRow("x", 0, "s1"),
                LastRow("a", -1, "s1"),
            ],
        ),
        4,
        {
            "ignored": {
                "last_duplicate": 1,
                "last_region": 1,
                "last_replica": 1,
                "last_server": 2,
                "server_draining": 1,
            },
            "stay_bytes": 20,
        },
        (
            "2 x former place on a server that is gone or takes no regions",
            "1 x further former place of one replica; the least server id counts",
            "1 x former place of an unknown region",
            "1 x former place without a replica number",
            "1 x draining: takes no regions",
        ),
    ),
    Dirty(
        "servers of no use",
        Snapshot.of(
            [RegionRow("a", "t")],
            [
                ServerRow("s1", "h1"),
                ServerRow("s2", "h2", weight=0.0),
                ServerRow("s3", "h3", weight=-1.0),
                ServerRow("s4", "h4", weight=None),
                ServerRow("", "h5"),
                ServerRow("s1", "h1"),
            ],
        ),
        1,
        {"ignored": {"server_duplicate": 1, "server_weight": 3, "server_without_id": 1}, "eligible_servers": 1},
        ("3 x weight missing, not a number or <= 0: takes no regions", "1 x server row without id"),
    ),
    Dirty(
        "regions of no size, and rows of no region",
        Snapshot.of(
            [RegionRow("a", "t"), RegionRow("b", "t", -1), RegionRow("c", "t", 5, replicas=0), RegionRow("", "t")], TWO
        ),
        3,
        {"ignored": {"region_replicas": 1, "region_size": 1, "region_without_id": 1}, "local_bytes": 0},
        ("1 x region row without id", "1 x size missing, negative", "1 x replicas missing or < 1, taken as 1"),
    ),
)
