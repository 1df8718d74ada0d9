"""Malformed input directories from a seed: every fault of malformed.py and some more.

`write_nasty(directory, seed)` writes a directory and returns its faults. For every such input: no engine may end with a
traceback; all engines must agree whether a plan exists; `broken_rules`, which shares no code with the planner, must
accept the plan; and the same rows in another order and in other parts must give the same digest.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

Row = dict[str, Any]
Tables = dict[str, list[Row]]

#: Columns that an input must have; the others have defaults.
NEEDED: Final = {
    "regions": ("region_id", "table_id", "size_bytes"),
    "servers": ("server_id", "host"),
    "blocks": ("region_id", "host", "bytes"),
    "last": ("region_id", "replica", "server_id"),
}
DEFAULTS: Final = {"start_key": "", "load": 0.0, "replicas": 1, "grp": "", "rack": "default"}
NAMES: Final = ("übergröße", "名前", "[/bold]", "a,b", 'say "hi"', " spaced ", "line\nbreak", "<b>&amp;", "'; --", "\t")
HUGE: Final = (2**62, 2**53 + 1, 10**15, 2**31)


class Nasty(msgspec.Struct):
    """The written rows and their faults."""

    tables: Tables
    done: list[str]
    #: True if a file was damaged or a needed column removed: then an error is a correct answer.
    broken: bool = False


def nasty(seed: int) -> Nasty:
    """Return rows for an input: a small cluster with a few random faults."""
    chance = random.Random(seed)
    made = Nasty(_clean(chance), [])
    for dirt in chance.sample(DIRT, chance.choice((0, 1, 2, 3, 5))):
        dirt(chance, made.tables)
        made.done.append(dirt.__name__.strip("_"))
    return made


def write_nasty(directory: Path, seed: int, *, shuffle: int = 0, damage: bool = False) -> Nasty:
    """Write the input of `seed`. `shuffle` gives other orders, parts and file formats of the same rows."""
    made = nasty(seed)
    chance = random.Random(f"{seed}.{shuffle}")
    for name, rows in made.tables.items():
        if name in ("blocks", "last") and not rows and chance.random() < 0.5:
            continue
        _write(chance, directory, name, rows, bare=shuffle == 0)
    if damage:
        how = random.Random(f"{seed}.damage").choice(DAMAGE)
        how(random.Random(f"{seed}.damage"), directory)
        made.done.append(how.__name__.strip("_"))
        made.broken = True
    return made


def _clean(chance: random.Random) -> Tables:
    """Return a cluster without faults."""
    racks, groups = chance.choice((1, 2, 3, 6)), chance.choice((1, 1, 2, 3))
    servers = [
        {
            "server_id": f"s{n}",
            "host": f"h{n // chance.choice((1, 1, 2))}",
            "rack": f"rack{chance.randrange(racks)}",
            "weight": chance.choice((1.0, 1.0, 2.0, 0.5)),
            "grp": ["", "g", "k"][n % groups],
            "draining": False,
        }
        for n in range(chance.choice((1, 2, 3, 5, 12)))
    ]
    most = chance.choice((1, 1, 3))
    regions = [
        {
            "region_id": f"r{n:03d}",
            "table_id": f"t{chance.randrange(4)}",
            "start_key": f"k{n}",
            "size_bytes": chance.choice((0, 10, 10, 500, 2**30)),
            "load": chance.random(),
            "replicas": chance.randint(1, most),
            "grp": ["", "g", "k"][chance.randrange(groups)],
        }
        for n in range(chance.choice((0, 1, 7, 60, 60)))
    ]
    blocks, last = [], []
    for region in regions:
        for _ in range(chance.randrange(4)):
            size = max(1, region["size_bytes"] // chance.randint(1, 3))
            blocks.append({"region_id": region["region_id"], "host": chance.choice(servers)["host"], "bytes": size})
        for number in range(region["replicas"]):
            if chance.random() < 0.7:
                server = chance.choice(servers)["server_id"]
                last.append({"region_id": region["region_id"], "replica": number, "server_id": server})
    return {"regions": regions, "servers": servers, "blocks": blocks, "last": last}


# --- dirt in the rows -----------------------------------------------------------------------------------------------


def _some(chance: random.Random, rows: list[Row]) -> list[Row]:
    return [row for row in rows if chance.random() < 0.3]


def _put(chance: random.Random, rows: list[Row], column: str, values: tuple[Any, ...]) -> None:
    for row in _some(chance, rows):
        row[column] = chance.choice(values)


def _nulls(chance: random.Random, tables: Tables) -> None:
    for rows in tables.values():
        for row in _some(chance, rows):
            name = chance.choice(sorted(row.keys() - {"table_id", "grp"}))
            row[name] = None


def _negative_numbers(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["regions"], "size_bytes", (-1, -(2**40)))
    _put(chance, tables["regions"], "replicas", (-1, 0))
    _put(chance, tables["blocks"], "bytes", (-5, 0))
    _put(chance, tables["last"], "replica", (-1,))
    _put(chance, tables["servers"], "weight", (-1.0, -0.0))


def _huge_numbers(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["regions"], "size_bytes", HUGE)
    _put(chance, tables["regions"], "replicas", HUGE)
    _put(chance, tables["blocks"], "bytes", HUGE)
    _put(chance, tables["last"], "replica", HUGE)


def _strange_weights(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["servers"], "weight", (1e308, 1e-308, 5e-324, math.nan, math.inf, -math.inf, 0.0, 1e9))


def _strange_loads(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["regions"], "load", (math.nan, math.inf, -math.inf, 1e308, -3.0, None))


def _copies(chance: random.Random, tables: Tables) -> None:
    for name, rows in tables.items():
        if name != "blocks":
            rows += [dict(row) for row in _some(chance, rows)]


def _contradictions(chance: random.Random, tables: Tables) -> None:
    rows = tables["regions"]
    rows += [{**row, "size_bytes": 77} for row in _some(chance, rows)[:3]]


def _other_servers(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["last"], "server_id", ("nobody", "", "s99"))
    _put(chance, tables["blocks"], "host", ("nowhere", ""))


def _other_regions(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["last"], "region_id", ("nothing", ""))
    _put(chance, tables["blocks"], "region_id", ("nothing", ""))


def _rows_without_id(chance: random.Random, tables: Tables) -> None:
    tables["regions"] += [{**row, "region_id": ""} for row in _some(chance, tables["regions"])]
    tables["servers"] += [{**row, "server_id": ""} for row in _some(chance, tables["servers"])]


def _strange_names(chance: random.Random, tables: Tables) -> None:
    used = {name: chance.choice(NAMES) for name in ("region_id", "table_id", "host", "rack", "grp", "server_id")}
    old: dict[str, dict[str, str]] = {}
    for name, suffix in used.items():
        seen = sorted({row[name] for rows in tables.values() for row in rows if row.get(name)})
        old[name] = {value: value + suffix for value in seen[::2]}
    for rows in tables.values():
        for row in rows:
            for name, renamed in old.items():
                row.update({name: renamed[row[name]]} if row.get(name) in renamed else {})


def _all_drain(chance: random.Random, tables: Tables) -> None:
    for row in tables["servers"]:
        row["draining"] = True


def _some_drain(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["servers"], "draining", (True,))


def _no_server_of_a_group(chance: random.Random, tables: Tables) -> None:
    _put(chance, tables["regions"], "grp", ("unserved",))


def _more_replicas_than_racks(chance: random.Random, tables: Tables) -> None:
    for row in tables["regions"]:
        row["replicas"] = 7


def _one_server(chance: random.Random, tables: Tables) -> None:
    del tables["servers"][1:]


def _empty_tables(chance: random.Random, tables: Tables) -> None:
    for name in chance.sample(sorted(tables), 2):
        tables[name].clear()


def _one_weight_of_all(chance: random.Random, tables: Tables) -> None:
    """Let one server take nearly all regions: the ceilings of the others are small, or 0."""
    for n, row in enumerate(tables["servers"]):
        row["weight"] = 1e12 if n == 0 else 1.0


DIRT: Final[tuple[Callable[[random.Random, Tables], None], ...]] = (
    _nulls,
    _negative_numbers,
    _huge_numbers,
    _strange_weights,
    _strange_loads,
    _copies,
    _contradictions,
    _other_servers,
    _other_regions,
    _rows_without_id,
    _strange_names,
    _all_drain,
    _some_drain,
    _no_server_of_a_group,
    _more_replicas_than_racks,
    _one_server,
    _empty_tables,
    _one_weight_of_all,
)


# --- files ----------------------------------------------------------------------------------------------------------


def _write(chance: random.Random, directory: Path, name: str, rows: list[Row], *, bare: bool) -> None:
    """Write one table as a file or in parts. Unless `bare`, change the order of rows and columns and add a column."""
    kind = chance.choice(("csv", "parquet"))
    columns = list(COLUMNS[name])
    rows = list(rows)
    parts = 1
    if not bare:
        chance.shuffle(rows)
        chance.shuffle(columns)
        parts = chance.choice((1, 2, 3))
    directory.mkdir(parents=True, exist_ok=True)
    if parts == 1:
        _write_file(directory / f"{name}.{kind}", columns, rows, kind)
        return
    (directory / name).mkdir()
    for part in range(parts):
        _write_file(directory / name / f"part-{part}.{kind}", columns, rows[part::parts], kind)


COLUMNS: Final = {
    "regions": ("region_id", "table_id", "start_key", "size_bytes", "load", "replicas", "grp"),
    "servers": ("server_id", "host", "rack", "weight", "grp", "draining"),
    "blocks": ("region_id", "host", "bytes"),
    "last": ("region_id", "replica", "server_id"),
}


def _write_file(path: Path, columns: list[str], rows: list[Row], kind: str) -> None:
    if kind == "csv":
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row[column]) for column in columns] for row in rows)
        path.write_text(out.getvalue(), encoding="utf-8", newline="")
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "size_bytes": pa.int64(),
        "replicas": pa.int64(),
        "bytes": pa.int64(),
        "replica": pa.int64(),
        "load": pa.float64(),
        "weight": pa.float64(),
        "draining": pa.bool_(),
    }
    arrays = [pa.array([row[column] for row in rows], kinds.get(column, pa.string())) for column in columns]
    pq.write_table(pa.table(arrays, names=columns), path)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None or value != value else value


# --- damage to the files --------------------------------------------------------------------------------------------


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _truncated(chance: random.Random, directory: Path) -> None:
    path = chance.choice(_files(directory))
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])


def _empty_file(chance: random.Random, directory: Path) -> None:
    chance.choice(_files(directory)).write_bytes(b"")


def _overwritten(chance: random.Random, directory: Path) -> None:
    """Overwrite a few bytes, which often makes the text invalid UTF-8."""
    path = chance.choice(_files(directory))
    data = bytearray(path.read_bytes())
    for _ in range(3):
        if data:
            data[chance.randrange(len(data))] = chance.choice((0, 0xFF, 0xC3, 0x22, 0x0A))
    path.write_bytes(data)


def _garbage(chance: random.Random, directory: Path) -> None:
    chance.choice(_files(directory)).write_bytes(chance.randbytes(300))


def _missing_column(chance: random.Random, directory: Path) -> None:
    name = chance.choice(sorted(NEEDED))
    _replace(directory, name, f"{','.join(NEEDED[name][1:])}\na,b\n")


def _wrong_type(chance: random.Random, directory: Path) -> None:
    name, text = chance.choice(
        (
            ("regions", "region_id,table_id,size_bytes\na,t,large\n"),
            ("regions", "region_id,table_id,size_bytes\na,t,1.5\n"),
            ("regions", "region_id,table_id,size_bytes\na,t,99999999999999999999999\n"),
            ("regions", "region_id,table_id,size_bytes\na,t\n"),
            ("regions", "region_id,table_id,size_bytes,load\na,t,1,heavy\n"),
            ("servers", "server_id,host,draining\ns1,h1,maybe\n"),
            ("servers", "server_id,host,weight\ns1,h1,heavy\n"),
            ("blocks", "region_id,host,bytes\nr001,h1,many\n"),
            ("last", "region_id,replica,server_id\nr001,first,s1\n"),
        )
    )
    _replace(directory, name, text)


def _missing_table(chance: random.Random, directory: Path) -> None:
    _replace(directory, chance.choice(("regions", "servers")), None)


def _bad_params(chance: random.Random, directory: Path) -> None:
    text = chance.choice(("", "[]", "{", '{"slop": -1}', '{"lambda_move": "much"}', '{"table_slack": 1e9}', "\xff"))
    (directory / "params.json").write_bytes(text.encode("latin-1"))


def _twice_the_column(chance: random.Random, directory: Path) -> None:
    _replace(directory, "regions", "region_id,table_id,size_bytes,table_id\na,t,1,u\n")


def _a_directory_in_its_place(chance: random.Random, directory: Path) -> None:
    path = chance.choice(_files(directory))
    path.unlink()
    path.mkdir()


def _replace(directory: Path, name: str, text: str | None) -> None:
    for path in _files(directory):
        if name in (path.stem, path.parent.name):
            path.unlink()
    if text is not None:
        (directory / f"{name}.csv").write_text(text, encoding="utf-8")


DAMAGE: Final[tuple[Callable[[random.Random, Path], None], ...]] = (
    _truncated,
    _empty_file,
    _overwritten,
    _garbage,
    _missing_column,
    _wrong_type,
    _missing_table,
    _bad_params,
    _twice_the_column,
    _a_directory_in_its_place,
)


# --- what a plan must be --------------------------------------------------------------------------------------------


def broken_rules(tables: Tables, rows: list[tuple[str, int, str]]) -> list[str]:
    """Return violations of the rules that hold for any quotas, by counting rows only."""
    fleet: dict[str, tuple[str, str]] = {}
    for server in _usable(tables["servers"]):
        fleet[server["server_id"]] = (server["grp"] or "", server["rack"] or "")
    found: list[str] = []
    places: dict[str, dict[int, str]] = {}
    for region_id, replica, server_id in rows:
        if replica in places.setdefault(region_id, {}):
            found.append(f"{region_id}/{replica} twice")
        places[region_id][replica] = server_id
    wanted = {row["region_id"]: row for row in tables["regions"] if row["region_id"]}
    found += [f"{region_id} is of no input" for region_id in places.keys() - wanted.keys()]
    for region_id, row in wanted.items():
        group = row["grp"] or ""
        members = [server for server, (grp, _) in fleet.items() if grp == group]
        number = min(max(row["replicas"] or 1, 1), len(members))
        mine = places.get(region_id, {})
        if sorted(mine) != list(range(number)):
            found.append(f"{region_id} has replicas {sorted(mine)}, not {number}")
        if len(set(mine.values())) != len(mine) or not set(mine.values()) <= set(members):
            found.append(f"{region_id} is on {sorted(mine.values())} of {members}")
    return found


def _usable(rows: list[Row]) -> list[Row]:
    """Return the servers that may take regions. Of several rows of one id, the smallest counts."""
    least: dict[str, tuple[Any, ...]] = {}
    for row in rows:
        weight = row["weight"]
        if weight is None or math.isnan(weight) or math.isinf(weight):
            weight = -1.0
        if row["server_id"]:
            key = (row["host"] or "", row["rack"] or "", weight, row["grp"] or "", bool(row["draining"]))
            least[row["server_id"]] = min(key, least.get(row["server_id"], key))
    return [
        {"server_id": sid, "rack": rack, "grp": grp}
        for sid, (_, rack, weight, grp, draining) in least.items()
        if weight > 0 and not draining
    ]


def spread(rows: list[tuple[str, int, str]]) -> Counter[str]:
    """Return the number of replicas per server."""
    return Counter(server_id for _, _, server_id in rows)


def as_text(made: Nasty) -> str:
    """Return the input as text for a failing test."""
    return json.dumps(made.done)
