"""Reads and writes snapshots and plans as files, and writes the progress lines of a planning process.

    input DIR    regions, servers, blocks, last: each NAME.parquet, NAME.csv (with a header) or NAME/ with such parts;
                 (NAME.parquet and NAME.csv may be such directories, too); blocks and last may be absent, and
                 params.json
    output DIR   part-NNNNN.parquet ..., manifest.json

The manifest is written last and atomically, so a directory without one is no plan. It names every part with its
SHA-256, and the digest of the rows. Columns are found by name, in any order; unknown columns are ignored.
pyarrow is needed for Parquet alone, and imported only then.
"""

from __future__ import annotations

import csv
import ctypes
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec
import numpy as np

from regions.plan.artifact.digest import plan_digest
from regions.plan.problem.model import (
    MISSING,
    BadInput,
    BadPlan,
    Blocks,
    Last,
    Params,
    Plan,
    PlanRows,
    RegionColumns,
    ServerColumns,
    Snapshot,
    Stats,
    UnusableOutput,
    bools,
    floats,
    ints,
    params_from_json,
    texts,
)

MANIFEST: Final = "manifest.json"
#: Rows of one Parquet row group. A file with a single group could be read by one core only.
ROW_GROUP: Final = 131_072
#: The copy of its input inside a plan directory.
INPUT: Final = "input"
#: Linux: the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG: Final = 1
#: Written last into an input directory: the input is complete when this file exists.
PARAMS: Final = "params.json"

#: Columns of each input table with their kinds, in the order of the classes of `model`.
COLUMNS: Final[dict[str, dict[str, str]]] = {
    "regions": {
        "region_id": "text",
        "table_id": "text",
        "start_key": "text",
        "size_bytes": "int",
        "load": "float",
        "replicas": "int",
        "grp": "text",
    },
    "servers": {
        "server_id": "text",
        "host": "text",
        "rack": "text",
        "weight": "float",
        "grp": "text",
        "draining": "bool",
    },
    "blocks": {"region_id": "text", "host": "text", "bytes": "int"},
    "last": {"region_id": "text", "replica": "int", "server_id": "text"},
}
#: Optional columns of an input, with their defaults.
DEFAULTS: Final[dict[str, Any]] = {
    "start_key": "",
    "load": 0.0,
    "replicas": 1,
    "grp": "",
    "rack": "default",
    "weight": 1.0,
    "draining": False,
}
OPTIONAL_TABLES: Final = ("blocks", "last", "paths")
#: Integers are below this, and not below its negative.
INT_END: Final = 2**63
PLAN_COLUMNS: Final = {"region_id": "text", "replica": "int", "server_id": "text"}
MAKERS: Final[dict[str, Callable[[Any], Any]]] = {"text": texts, "int": ints, "float": floats, "bool": bools}


class Part(msgspec.Struct, frozen=True):
    """One file of a plan."""

    file: str
    rows: int
    sha256: str


class PlanManifest(msgspec.Struct, kw_only=True):
    """The manifest of a plan directory, `manifest.json`."""

    plan_id: str
    engine: str
    #: Name of the snapshot and fencing epoch of the requesting master, from `params.json`.
    snapshot_id: str = ""
    master_epoch: int = 0
    rows: int = 0
    #: SHA-256 of the sorted rows (`digest.plan_digest`).
    digest: str = ""
    parts: list[Part] = msgspec.field(default_factory=list)
    params: Params = msgspec.field(default_factory=Params)
    stats: Stats = msgspec.field(default_factory=Stats)
    #: Seconds of each stage.
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    #: Fingerprint of the input (`fingerprint.fingerprint`), "" if no copy of the input was kept.
    fingerprint: str = ""
    #: Files of the copy of the input, below `INPUT`.
    inputs: list[Part] = msgspec.field(default_factory=list)
    #: Source of the input: "cluster" (a running cluster) or "files" (a directory).
    origin: str = ""
    #: Why another engine than the requested one has computed the plan.
    note: str = ""
    created_ms: int = 0
    #: Display names of servers and tables, by id, where they differ from the id.
    names: dict[str, str] = msgspec.field(default_factory=dict)


def usual_id(made: Plan) -> str:
    """Return the id of a plan without a given name: its engine, and the beginning of its digest.

    Two engines may choose the same places, so the digest alone would give two plans one id.
    """
    return f"plan-{made.stats.engine}-{made.digest[:12]}"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a plan: fields of the manifest that are not derived from the plan."""

    fingerprint: str = ""
    inputs: tuple[Part, ...] = ()
    origin: str = ""
    note: str = ""
    created_ms: int = 0
    names: dict[str, str] = msgspec.field(default_factory=dict)


class ProgressWriter:
    """Writes the progress of a planning process as one JSON object per line, for its parent process."""

    def __init__(self, out: TextIO, total: int, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self.out = out
        self.total = total
        self.done = 0
        self.clock = clock
        self.start = clock()
        self.stage_start = self.start
        self.seconds: dict[str, float] = {}

    def stage(self, name: str) -> None:
        """Write the end of a stage. `seconds` in the line is the time since the start of the process's work."""
        now = self.clock()
        self.seconds[name] = round(now - self.stage_start, 3)
        self.stage_start = now
        self.done += 1
        self._line({"stage": name, "done": self.done, "total": self.total})

    def note(self, text: str) -> None:
        """Write why the current stage takes long."""
        self._line({"stage": text, "done": self.done, "total": self.total})

    def finished(self, manifest: PlanManifest) -> None:
        """Write the end of the job, after the manifest was written."""
        self._line(
            {
                "stage": "done",
                "done": self.total,
                "total": self.total,
                "plan_id": manifest.plan_id,
                "rows": manifest.rows,
                "digest": manifest.digest,
            }
        )

    def failed(self, error: str, message: str) -> None:
        """Write the failure of the job."""
        self._line({"stage": "failed", "error": error, "message": message})

    def _line(self, fields: dict[str, object]) -> None:
        fields["seconds"] = round(self.clock() - self.start, 3)
        self.out.write(msgspec.json.encode(fields).decode() + "\n")
        self.out.flush()


# --- input ----------------------------------------------------------------------------------------------------------


def find_table(directory: Path, name: str) -> tuple[str, list[Path]]:
    """Return format ("parquet" or "csv") and files of an input table; no files for an absent optional table.

    Raise BadInput.
    """
    found: list[tuple[str, list[Path]]] = []
    for kind in ("parquet", "csv"):
        single = directory / f"{name}.{kind}"
        if single.is_file():
            found.append((kind, [single]))
        for folder in (directory / name, single):
            parts = sorted(p for p in folder.glob(f"*.{kind}") if p.is_file() and not p.name.startswith(("_", ".")))
            if parts:
                found.append((kind, parts))
    if len(found) > 1:
        one, two = (paths[0].relative_to(directory) for _, paths in found[:2])
        raise BadInput(f"{directory} has the table {name} twice, as {one} and as {two}: remove one of them")
    if found:
        return found[0]
    if name in OPTIONAL_TABLES:
        return "csv", []
    raise BadInput(f"{directory} has no {name}.parquet, {name}.csv or {name}/ with *.parquet or *.csv files")


def read_params(directory: Path) -> Params:
    """Return the content of `params.json`, or the defaults. Raise BadInput."""
    path = directory / PARAMS
    try:
        return params_from_json(path.read_bytes()) if path.exists() else Params()
    except OSError as error:
        raise BadInput(f"{path}: {error}") from error


def read_snapshot(directory: Path) -> Snapshot:
    """Return the four input tables. Raise BadInput."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is no directory")
    tables = {name: _read_table(directory, name) for name in COLUMNS}
    return Snapshot(
        RegionColumns(*tables["regions"]),
        ServerColumns(*tables["servers"]),
        Blocks(*tables["blocks"]),
        Last(*tables["last"]),
    )


def _read_table(directory: Path, name: str) -> list[Any]:
    """Return the columns of one table, in the order of COLUMNS."""
    kind, paths = find_table(directory, name)
    parts = [read_file(path, kind, COLUMNS[name]) for path in paths]
    if not parts:
        return [MAKERS[k]([]) for k in COLUMNS[name].values()]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def read_file(path: Path, kind: str, columns: dict[str, str]) -> list[Any]:
    """Return the named columns of one Parquet or CSV file. Raise BadInput with file and column or line."""
    try:
        return _read_parquet(path, columns) if kind == "parquet" else _read_csv(path, columns)
    except OSError as error:
        raise BadInput(f"{path}: {error}") from error


def _read_csv(path: Path, columns: dict[str, str]) -> list[Any]:
    """Return columns of a CSV file. An empty cell is a missing value."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            header = next(reader, [])
            check_columns(path, header, columns)
            rows = [row for row in reader if row]
            for at, row in enumerate(rows):
                if len(row) != len(header):
                    raise BadInput(f"{_place(path, at)}: {len(row)} cells, and the header has {len(header)}")
            return [_csv_column(path, rows, name, kind, header) for name, kind in columns.items()]
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: after line {reader.line_num}: it is not UTF-8 ({error.reason})") from error
        except csv.Error as error:
            raise BadInput(f"{path}: near line {reader.line_num}: {error}") from error


def check_columns(path: Path, found: Sequence[str], columns: dict[str, str]) -> None:
    """Raise BadInput if a column of the input is missing or occurs twice."""
    missing = [name for name in columns if name not in found and name not in DEFAULTS]
    if missing:
        raise BadInput(f"{path}: no column {', '.join(missing)}")
    twice = [name for name in columns if list(found).count(name) > 1]
    if twice:
        raise BadInput(f"{path}: column {', '.join(twice)} occurs twice")


def check_types(path: Path, schema: Any, columns: dict[str, str]) -> None:
    """Raise BadInput if a column of a Parquet file is of a nested or temporal type."""
    pa, _ = _arrow()
    for field in schema:
        if field.name in columns and (pa.types.is_nested(field.type) or pa.types.is_temporal(field.type)):
            raise BadInput(f"{path}: column {field.name} is of type {field.type}, not {columns[field.name]}")


def _csv_column(path: Path, rows: list[list[str]], name: str, kind: str, header: list[str]) -> Any:
    """Return one column of a CSV file. Raise BadInput."""
    if name not in header:
        return MAKERS[kind]([DEFAULTS[name]] * len(rows))
    at = header.index(name)
    values = []
    for row in rows:
        try:
            values.append(_cell(row[at], kind))
        except ValueError as error:
            raise BadInput(f"{_place(path, len(values))}: {name}: {error}") from error
    return MAKERS[kind](values)


def _place(path: Path, row: int) -> str:
    """Return file and line where a row of a CSV file ends. A cell may contain line ends."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        next(reader)
        lines = (reader.line_num for cells in reader if cells)
        return f"{path}: near line {next(line for at, line in enumerate(lines) if at == row)}"


def _cell(text: str, kind: str) -> Any:
    """Return the value of one CSV cell, None for an empty one."""
    if kind == "text":
        return text
    if not text:
        return None
    if "_" in text or (kind == "int" and text != text.strip()):
        raise ValueError(f"{text!r} is no number")  # Python would accept the text, Spark does not
    if kind == "int":
        if not -INT_END <= int(text) < INT_END:
            raise ValueError(f"{text} is beyond 64 bits")
        return int(text)
    if kind == "float":
        return float(text)
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


def _read_parquet(path: Path, columns: dict[str, str]) -> list[Any]:
    """Return columns of a Parquet file."""
    pa, pq = _arrow()
    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    fill = {"text": "", "int": MISSING, "float": float("nan"), "bool": False}
    name = ""
    try:
        file = pq.ParquetFile(path)
        found = file.schema_arrow.names
        check_columns(path, found, columns)
        check_types(path, file.schema_arrow, columns)
        table = file.read(columns=[name for name in columns if name in found])
        result = []
        for name, kind in columns.items():
            if name not in found:
                result.append(MAKERS[kind]([DEFAULTS[name]] * table.num_rows))
                continue
            column = table.column(name).cast(types[kind]).fill_null(fill[kind])
            column.validate(full=True)
            result.append(_texts_of(column) if kind == "text" else column.to_numpy())
        return result
    except (pa.ArrowException, ValueError) as error:
        where = f"{path}: column {name}" if name else f"{path}"
        raise BadInput(f"{where}: {str(error).splitlines()[0]}") from error


def _texts_of(column: Any) -> Any:
    """Return a text column in which equal texts are one object, which saves memory and look-up time."""
    coded = column.combine_chunks().dictionary_encode()
    return coded.dictionary.to_numpy(zero_copy_only=False).astype(object)[coded.indices.to_numpy()]


def _arrow() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module. Raise BadInput if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput("Parquet files need pyarrow, which is not installed; CSV files do not") from error
    return pyarrow, pyarrow.parquet


def write_snapshot(directory: Path, snapshot: Snapshot, params: Params | None = None, *, kind: str = "csv") -> None:
    """Write the input directory of a planning process. `kind` is "csv" or "parquet"."""
    directory.mkdir(parents=True, exist_ok=True)
    tables = {
        "regions": snapshot.regions,
        "servers": snapshot.servers,
        "blocks": snapshot.blocks,
        "last": snapshot.last,
    }
    for name, table in tables.items():
        columns = [getattr(table, column) for column in COLUMNS[name]]
        _write_table(directory / f"{name}.{kind}", COLUMNS[name], columns, kind)
    if params is not None:
        temporary = directory / f".{PARAMS}.new"
        temporary.write_bytes(msgspec.json.encode(params))
        temporary.rename(directory / PARAMS)


def _write_table(path: Path, columns: dict[str, str], values: Sequence[Any], kind: str) -> None:
    """Write one table as a CSV or Parquet file."""
    if kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            plain = [[_text(v) for v in column.tolist()] for column in values]
            writer.writerows(zip(*plain, strict=True))
        return
    pa, pq = _arrow()
    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    arrays = []
    for column_kind, column in zip(columns.values(), values, strict=True):
        absent = column == MISSING if column_kind == "int" else None
        arrays.append(pa.array(column, type=types[column_kind], mask=absent, from_pandas=True))
    pq.write_table(pa.table(arrays, names=list(columns)), path, row_group_size=ROW_GROUP)


def _text(value: object) -> object:
    """Return the CSV cell of a value."""
    if value == MISSING or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


# --- output ---------------------------------------------------------------------------------------------------------


def prepare_output(directory: Path) -> None:
    """Create an output directory. Raise UnusableOutput, also if it contains a plan already."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableOutput(f"{directory}: {error.strerror or error}") from error
    if (directory / MANIFEST).exists():
        raise UnusableOutput(f"{directory} holds a plan already: choose another directory")


def write_plan(
    directory: Path,
    plan: Plan,
    *,
    plan_id: str,
    params: Params,
    seconds: dict[str, float],
    rows_per_part: int = 500_000,
    origin: Origin | None = None,
) -> PlanManifest:
    """Write the parts, then the manifest, and sync them to disk. Raise UnusableOutput."""
    prepare_output(directory)
    origin = origin or Origin()
    parts = []
    for number, start in enumerate(range(0, max(len(plan.rows), 1), rows_per_part)):
        rows = slice(start, start + rows_per_part)
        path = directory / f"part-{number:05d}.parquet"
        columns = [plan.rows.region_id[rows], plan.rows.replica[rows], plan.rows.server_id[rows]]
        _write_table(path, PLAN_COLUMNS, columns, "parquet")
        _sync(path)
        parts.append(Part(path.name, len(columns[0]), hashlib.sha256(path.read_bytes()).hexdigest()))
    manifest = PlanManifest(
        plan_id=plan_id,
        engine=plan.stats.engine,
        snapshot_id=params.snapshot_id,
        master_epoch=params.master_epoch,
        rows=len(plan.rows),
        digest=plan.digest,
        parts=parts,
        params=params,
        stats=plan.stats,
        seconds=seconds,
        fingerprint=origin.fingerprint,
        inputs=list(origin.inputs),
        origin=origin.origin,
        note=origin.note,
        created_ms=origin.created_ms,
        names=origin.names,
    )
    temporary = directory / f".{MANIFEST}.new"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    _sync(temporary)
    temporary.rename(directory / MANIFEST)
    _sync(directory)
    return manifest


def _sync(path: Path) -> None:
    """Sync a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(directory: Path) -> PlanManifest:
    """Return the manifest of a plan directory. Raise BadPlan."""
    try:
        return msgspec.json.decode((directory / MANIFEST).read_bytes(), type=PlanManifest)
    except OSError as error:
        raise BadPlan(f"{directory} holds no plan: {error}") from error
    except msgspec.MsgspecError as error:
        raise BadPlan(f"{directory / MANIFEST}: {error}") from error


def read_plan(directory: Path) -> tuple[Plan, PlanManifest]:
    """Return a plan whose parts and digest match its manifest. Raise BadPlan, or BadInput without pyarrow."""
    manifest = read_manifest(directory)
    columns: list[list[Any]] = []
    for part in manifest.parts:
        path = directory / part.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadPlan(f"{path}: {error}") from error
        if hashlib.sha256(data).hexdigest() != part.sha256:
            raise BadPlan(f"{path} has changed since the plan was written: its SHA-256 differs from the manifest's")
        columns.append(read_file(path, "parquet", PLAN_COLUMNS))
    region_id, replica, server_id = (
        (np.concatenate(c) for c in zip(*columns, strict=True)) if columns else (texts([]), ints([]), texts([]))
    )
    order = np.lexsort((replica, region_id))
    rows = PlanRows(region_id[order], replica[order], server_id[order])
    if len(rows) != manifest.rows or plan_digest(rows) != manifest.digest:
        raise BadPlan(f"{directory}: the rows do not match the manifest's digest {manifest.digest}")
    return Plan(rows, manifest.digest, manifest.stats), manifest


def keep_input(directory: Path, snapshot: Snapshot, params: Params) -> list[Part]:
    """Write a copy of the input into a plan directory, before the plan. Return its files. Raise UnusableOutput."""
    prepare_output(directory)
    try:
        write_snapshot(directory / INPUT, snapshot, params, kind="parquet")
    except OSError as error:
        raise UnusableOutput(f"{directory / INPUT}: {error.strerror or error}") from error
    rows = {name: len(getattr(snapshot, name)) for name in COLUMNS}
    names = [*(f"{name}.parquet" for name in COLUMNS), PARAMS]
    return [
        Part(f"{INPUT}/{name}", rows.get(name.partition(".")[0], 0), _sha256(directory / INPUT / name))
        for name in names
    ]


def read_input(directory: Path, manifest: PlanManifest) -> tuple[Snapshot, Params]:
    """Return the input of a plan. Raise BadPlan if its copy is missing or has changed."""
    if not manifest.inputs:
        raise BadPlan(f"{directory} has no copy of its input: plans of `rk plan create` have one")
    for part in manifest.inputs:
        path = directory / part.file
        try:
            found = _sha256(path)
        except OSError as error:
            raise BadPlan(f"{path}: {error}") from error
        if found != part.sha256:
            raise BadPlan(f"{path} has changed since the plan was written: its SHA-256 differs from the manifest's")
    return read_snapshot(directory / INPUT), read_params(directory / INPUT)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- shared by the command lines ------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies, because nothing would use the plan."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def progress_on_stdout(total: int, clock: Callable[[], float]) -> ProgressWriter:
    """Return a writer of progress lines to standard output. Other output is redirected to standard error."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return ProgressWriter(out, total, clock)
