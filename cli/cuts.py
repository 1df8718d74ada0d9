"""The key ranges of a new table, from the options of `rk table create`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cli.common.errors import NotFoundError, UsageFaultError
from cli.splits import read_keys, split_evenly
from regions.records.partitioning import RegionSpec, split_ranges


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
) -> tuple[list[str], list[RegionSpec]]:
    """Return split keys, or whole regions with their sizes. Raise UsageFaultError, NotFoundError."""
    if split and (splits is not None or source is not None):
        raise UsageFaultError("--split, --splits and --from exclude each other")
    if split:
        with usage_faults():
            split_ranges(split)
        return split, []
    found = region_specs(splits, regions, source, key_column, size_column)
    if source is not None:
        return [], found
    return [one.start_key for one in found[1:]], []


def region_specs(
    splits: Path | None, regions: int | None, source: Path | None, key_column: str | None, size_column: str | None
) -> list[RegionSpec]:
    """Return the regions that the options of `rk table create` request. Raise UsageFaultError, NotFoundError."""
    if splits is not None:
        if regions is not None or source is not None:
            raise UsageFaultError("--splits and --regions/--from exclude each other")
        return _specs_of_file(splits)
    if source is None:
        if regions is not None and regions > 1:
            raise UsageFaultError("--regions needs --from: a CSV file with the keys to split at")
        return [RegionSpec()]
    return specs_of_csv(source, regions or 1, key_column, size_column)


def specs_of_csv(
    source: Path, regions: int, key_column: str | None = None, size_column: str | None = None
) -> list[RegionSpec]:
    """Return `regions` regions of nearly equal size, split at keys of `source`. Raise as `region_specs`."""
    try:
        cut = split_evenly(read_keys(source, key_column=key_column, size_column=size_column), regions)
    except ValueError as error:
        raise UsageFaultError(f"{source}: {error}") from error
    ranges = split_ranges(cut.keys)
    return [RegionSpec(one.start_key, one.end_key, size) for one, size in zip(ranges, cut.sizes_bytes, strict=True)]


def _specs_of_file(path: Path) -> list[RegionSpec]:
    try:
        keys = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
        return split_ranges(keys)
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageFaultError(f"{path}: {error}", "One key per line, in increasing order.") from error
