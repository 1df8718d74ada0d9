"""Finds the hosts of regions' bytes in Hadoop's file systems, for tables with a path instead of block rows.

    paths     table_id str, path str         an input table; the data of the table's region R is the file PATH/R, or
                                             everything below that directory

A file system returns the hosts of each block (`getFileBlockLocations`; HDFS returns them with the listing). Names that
begin with `_` or `.` are ignored. The result becomes rows of the table `blocks` and is checked like them: files of
unknown regions and hosts without a server are counted and ignored.

`jvm` is py4j's view of a Java machine with Hadoop's classes: the Spark driver's, or one started for this purpose. This
module imports nothing of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from regions.plan.artifact.files import find_table, read_file
from regions.plan.problem.model import BadInput, Blocks, ints, texts

PATHS: Final = "paths"
COLUMNS: Final = {"table_id": "text", "path": "text"}
#: Number of files per request and per progress report.
CHUNK_FILES: Final = 5000
_FILE: Final = re.compile(r"\[([^\[\]]*)\]|null")
_BLOCK: Final = re.compile(r"\d+,(\d+)(?:\(corrupt\))?((?:,[^,\s]+)*)")


class LocalBytes:
    """Bytes per (region, host), and the number of files."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[str, str], int] = {}
        self.files = 0

    def blocks(self) -> Blocks:
        """Return the rows of the input table `blocks`."""
        pairs = sorted(self.bytes)
        return Blocks(
            texts(region for region, _ in pairs), texts(host for _, host in pairs), ints(self.bytes[p] for p in pairs)
        )


def read_paths(directory: Path) -> list[tuple[str, str]]:
    """Return the table `paths` of an input directory, sorted; empty if it is absent. Raise BadInput."""
    kind, files = find_table(directory, PATHS)
    parts = [read_file(path, kind, COLUMNS) for path in files]
    rows = {(table, path) for part in parts for table, path in zip(*(column.tolist() for column in part), strict=True)}
    for table, path in sorted(rows):
        if not table or not path:
            raise BadInput(f"{directory / PATHS}: a row without {'table_id' if not table else 'path'}")
    return sorted(rows)


def locate(jvm: Any, configuration: Any, path: str, found: LocalBytes, heard: Callable[[int], None]) -> None:
    """Add the files below `path`. `heard` is called with the number of files so far. Raise BadInput, Java errors."""
    root = jvm.org.apache.hadoop.fs.Path(path)
    system = root.getFileSystem(configuration)
    if not system.exists(root):
        raise BadInput(f"there is no {path}")
    start = _bare(system.makeQualified(root).toString()).rstrip("/") + "/"
    files = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(system.listFiles(root, True))
    total = files.size()
    for at in range(0, total, CHUNK_FILES):
        chunk = files.subList(at, min(at + CHUNK_FILES, total))
        for name, blocks in zip(_paths(jvm, chunk), _blocks(jvm, chunk), strict=True):
            region_id, _, rest = _bare(name).removeprefix(start).partition("/")
            if any(part.startswith(("_", ".")) for part in (region_id, *rest.split("/"))):
                continue
            found.files += 1
            for length, host in blocks:
                pair = region_id, host
                found.bytes[pair] = found.bytes.get(pair, 0) + length
        heard(found.files)


def _bare(path: str) -> str:
    """Return a path without scheme and authority."""
    return re.sub(r"^[A-Za-z][\w+.-]*:(//[^/]*)?", "", path)


def _each(jvm: Any, files: Any, getter: str) -> Any:
    """Return the results of a getter of all files as a Java collection, by one call instead of one per file."""
    collections = jvm.org.apache.commons.collections4
    call = collections.functors.InvokerTransformer.invokerTransformer(getter)
    return collections.CollectionUtils.collect(files, call)


def _paths(jvm: Any, files: Any) -> list[str]:
    """Return the path of each file."""
    return list(jvm.org.apache.commons.lang3.StringUtils.join(_each(jvm, files, "getPath"), "\0").split("\0"))


def _blocks(jvm: Any, files: Any) -> list[list[tuple[int, str]]]:
    """(length, host) of each file's blocks.

    Hadoop writes a block as `offset,length,host,host`, a file's blocks come as `[block, block]`.
    """
    text = jvm.java.util.Arrays.deepToString(_each(jvm, files, "getBlockLocations").toArray())
    return [
        [(int(block[1]), host) for block in _BLOCK.finditer(one[1] or "") for host in block[2].split(",") if host]
        for one in _FILE.finditer(text[1:-1])
    ]


def with_blocks(known: Blocks, more: Blocks) -> Blocks:
    """Return the rows of both. Bytes of the same region and host are added."""
    return Blocks(
        np.concatenate((known.region_id, more.region_id)),
        np.concatenate((known.host, more.host)),
        np.concatenate((known.bytes, more.bytes)),
    )
