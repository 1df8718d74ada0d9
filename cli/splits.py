"""Split a list of keys into regions of nearly equal bytes; the key ranges of a new table.

Pure except the functions that open a file. A region is the half-open key range [split i-1, split i). Every split
is an existing key.
"""

from __future__ import annotations

import bisect
import contextlib
import csv
import gzip
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from cli.common.errors import UsageFaultError
from regions.records.partitioning import RegionSpec, split_ranges
from regions.records.rows.codec import TypedTable
from regions.records.rows.words import parse_bound, parse_value

_F = TypeVar("_F", bound=Callable[..., Any])
#: Largest size: 1 EB, which fits into 64 bits.
SIZE_MAX: Final = 10**18
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _bytes(context: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of a size such as 500MB (powers of 1000). Raise BadParameter."""
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)B?", value.upper())
    if found is None:
        raise click.BadParameter(f"{value!r} is no size: write a number of bytes, such as 500MB", context, param)
    number, unit = float(found[1]), _UNITS[found[2]]
    if number > SIZE_MAX / unit:
        raise click.BadParameter(f"{value!r} is too large: at most {SIZE_MAX // 10**12}T", context, param)
    return int(number * unit)


def size_limits(command: _F) -> _F:
    """Add the options of sizes at which regions are split and merged."""
    above = click.option(
        "--split-above",
        callback=_bytes,
        metavar="SIZE",
        help="Split regions larger than this, such as 500MB; 0: never.",
    )
    below = click.option(
        "--merge-below", callback=_bytes, metavar="SIZE", help="Merge neighbors smaller than this; 0: never."
    )
    return above(below(command))


#: Rounds of evening out; a few dozen are enough for real inputs.
_PASSES_MAX: Final = 200


class SizedKey(NamedTuple):
    """One key of the input and the size of its value."""

    key: str
    size_bytes: int


class Splits(NamedTuple):
    """Split keys, and the bytes between them.

    `keys` has one element less than `sizes_bytes`: region 0 is ["", keys[0]), the last one [keys[-1], "").
    """

    keys: list[str]
    sizes_bytes: list[int]


def split_evenly(entries: Iterable[SizedKey], regions: int) -> Splits:
    """Split `entries` into exactly `regions` runs of nearly equal bytes; the input order does not matter.

    The first pass ends each run where its size is nearest to an equal share of the rest. So a huge key makes only its
    own region large. Then each cut is moved to the middle of its two neighbors until no cut moves. Sizes of equal keys
    are added.

    Raise ValueError if there are fewer different keys than regions, or `regions` is not positive.
    """
    if regions < 1:
        raise ValueError(f"{regions} regions requested; at least 1 is needed")
    merged: dict[str, int] = {}
    for key, size_bytes in entries:
        merged[key] = merged.get(key, 0) + size_bytes
    keys = sorted(merged)
    if len(keys) < regions:
        raise ValueError(f"{len(keys)} different keys cannot fill {regions} regions")
    sizes = [merged[key] for key in keys]
    #: before[i]: bytes of all keys before key i.
    before = [0, *itertools.accumulate(sizes)]
    cuts = [0, *_first_cuts(sizes, regions), len(keys)]
    assert len(cuts) == regions + 1, f"cut {len(cuts) - 1} regions, wanted {regions}"
    for _ in range(_PASSES_MAX):
        if not _even_out(cuts, before):
            break
    runs = [before[end] - before[start] for start, end in itertools.pairwise(cuts)]
    return Splits([keys[cut] for cut in cuts[1:-1]], runs)


def _first_cuts(sizes: Sequence[int], regions: int) -> list[int]:
    """Return the positions before which runs end, after one pass over the keys."""
    left_bytes = sum(sizes)
    cuts: list[int] = []
    run = keys_in_run = 0
    for position, size in enumerate(sizes):
        open_regions = regions - len(cuts)
        share = left_bytes / open_regions
        if keys_in_run and open_regions > 1 and _should_cut(run, size, share, len(sizes) - position, open_regions):
            cuts.append(position)
            left_bytes -= run
            run = keys_in_run = 0
        run += size
        keys_in_run += 1
    return cuts


def _even_out(cuts: list[int], before: Sequence[int]) -> bool:
    """Move each cut to where its two regions differ least; return True if any cut moved.

    The sum of the squared sizes decreases with each move, so the process ends.
    """
    moved = False
    for number in range(1, len(cuts) - 1):
        start, here, end = cuts[number - 1], cuts[number], cuts[number + 1]
        middle = (before[start] + before[end]) / 2
        right = bisect.bisect_left(before, middle, start + 1, end - 1)
        best = min((here, right, max(start + 1, right - 1)), key=lambda cut: abs(before[cut] - middle))
        if best != here:
            cuts[number] = best
            moved = True
    return moved


def _should_cut(run: int, size: int, share: float, keys_left: int, open_regions: int) -> bool:
    """Return True if the run ends before a key of `size` bytes; `keys_left` includes this key."""
    if keys_left < open_regions:
        return True  # every remaining region needs a key
    if run < share / 2:
        return False  # otherwise the keys before a huge one would become a tiny region
    return abs(run - share) <= abs(run + size - share)


def read_keys(
    path: Path, *, key_column: str | None = None, size_column: str | None = None, columns: TypedTable | None = None
) -> list[SizedKey]:
    """Read keys and sizes from a CSV file with a header line, gzip or plain.

    The key is the first column unless named; the size is the column `size_bytes` if it exists, else 1 for each key.
    With `columns`, the table's key columns are read by their names.

    Raise NotFoundError if the file does not exist, UsageFaultError naming line or column for wrong content.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageFaultError(
            f"cannot read {path}: {error.strerror}", "Name a CSV file with a header line, plain or .gz."
        ) from error
    try:
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UsageFaultError(f"{path} is neither CSV in UTF-8 nor a complete gzip file: {error}") from error
    rows = csv.reader(io.StringIO(text, newline=""))
    header = next(rows, None)
    if not header:
        raise UsageFaultError(f"{path} is empty", "The first line must name the columns.")
    if columns is not None and key_column is None:
        names = [one.name for one in columns.keys]
        key_at = [_column(path, header, name) for name in names]
    else:
        key_at = [_column(path, header, key_column) if key_column else 0]
    size_at = _column(path, header, size_column) if size_column else _optional(header, "size_bytes")
    return [_entry(path, line, row, key_at, size_at, columns) for line, row in enumerate(rows, start=2) if row]


def _column(path: Path, header: Sequence[str], name: str) -> int:
    found = _optional(header, name)
    if found is None:
        raise UsageFaultError(f"{path} has no column {name!r}", f"Its columns: {', '.join(header)}.")
    return found


def _optional(header: Sequence[str], name: str) -> int | None:
    return header.index(name) if name in header else None


def _entry(
    path: Path, line: int, row: Sequence[str], key_at: Sequence[int], size_at: int | None, columns: TypedTable | None
) -> SizedKey:
    try:
        size = 1 if size_at is None else int(row[size_at])
        texts = [row[at] for at in key_at]
        key = (
            texts[0]
            if columns is None
            else columns.key_of(
                {one.name: parse_value(columns, one, text) for one, text in zip(columns.keys, texts, strict=True)}
            )
        )
    except (IndexError, ValueError) as error:
        raise UsageFaultError(f"{path} line {line}: {error}", f"The line reads: {','.join(row)[:80]}") from error
    if not key or size < 0:
        raise UsageFaultError(f"{path} line {line}: empty key or negative size")
    return SizedKey(key, size)


# --- the options of `rk table create` ---------------------------------------------------------------------------------


@contextlib.contextmanager
def usage_faults() -> Iterator[None]:
    """Convert ValueError to UsageFaultError."""
    try:
        yield
    except ValueError as error:
        raise UsageFaultError(str(error)) from error


def where_to_cut(
    split: list[str],
    splits: Path | None,
    regions: int | None,
    source: Path | None,
    key_column: str | None,
    size_column: str | None,
    columns: TypedTable | None = None,
) -> tuple[list[str], list[RegionSpec]]:
    """Return split keys, or whole regions with their sizes. Raise UsageFaultError, NotFoundError.

    Splits of a table with `columns` are values of its key columns (`parse_bound`).
    """
    if split and (splits is not None or source is not None):
        raise UsageFaultError("--split, --splits and --from exclude each other")
    if split:
        with usage_faults():
            texts = split_texts(split, columns)
            split_ranges(texts)
        return texts, []
    found = region_specs(splits, regions, source, key_column, size_column, columns)
    if source is not None:
        return [], found
    return [one.start_key for one in found[1:]], []


def split_texts(splits: list[str], columns: TypedTable | None) -> list[str]:
    """Return the split keys as texts of keys. Raise ValueError."""
    return splits if columns is None else [parse_bound(columns, one) for one in splits]


def region_specs(
    splits: Path | None,
    regions: int | None,
    source: Path | None,
    key_column: str | None,
    size_column: str | None,
    columns: TypedTable | None = None,
) -> list[RegionSpec]:
    """Return the regions that the options of `rk table create` request. Raise UsageFaultError, NotFoundError."""
    if splits is not None:
        if regions is not None or source is not None:
            raise UsageFaultError("--splits and --regions/--from exclude each other")
        return _specs_of_file(splits, columns)
    if source is None:
        if regions is not None and regions > 1:
            raise UsageFaultError("--regions needs --from: a CSV file with the keys to split at")
        return [RegionSpec()]
    return specs_of_csv(source, regions or 1, key_column, size_column, columns)


def specs_of_csv(
    source: Path,
    regions: int,
    key_column: str | None = None,
    size_column: str | None = None,
    columns: TypedTable | None = None,
) -> list[RegionSpec]:
    """Return `regions` regions of nearly equal size, split at keys of `source`. Raise CliError."""
    try:
        cut = split_evenly(read_keys(source, key_column=key_column, size_column=size_column, columns=columns), regions)
    except ValueError as error:
        raise UsageFaultError(f"{source}: {error}") from error
    ranges = split_ranges(cut.keys)
    return [RegionSpec(one.start_key, one.end_key, size) for one, size in zip(ranges, cut.sizes_bytes, strict=True)]


def _specs_of_file(path: Path, columns: TypedTable | None) -> list[RegionSpec]:
    try:
        keys = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
        return split_ranges(split_texts(keys, columns))
    except OSError as error:
        raise UsageFaultError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageFaultError(f"{path}: {error}", "One key per line, in increasing order.") from error
