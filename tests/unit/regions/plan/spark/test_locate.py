"""Block rows from a Hadoop file system: the region of each file, and sums. The test simulates Java."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regions.plan import BadInput, Params, RegionRow, ServerRow, Snapshot
from regions.plan.artifact.files import write_snapshot
from regions.plan.spark.locate import LocalBytes, locate, read_paths, with_blocks


def java(tree: dict[str, str], there: bool = True) -> Any:
    """Return Hadoop's classes with the used methods; `tree`: path -> its blocks, as Java writes them."""

    class Root:
        def __init__(self, path: str) -> None:
            self.path = path

        def getFileSystem(self, _configuration: object) -> Any:
            return SimpleNamespace(
                exists=lambda _: there,
                makeQualified=lambda root: SimpleNamespace(toString=lambda: root.path),
                listFiles=lambda _root, _recursive: list(tree.items()),
            )

    class Files(list[tuple[str, str]]):
        def size(self) -> int:
            return len(self)

        def subList(self, start: int, end: int) -> Files:
            return Files(self[start:end])

    def collect(files: Files, getter: str) -> Any:
        column = [one[0 if getter == "getPath" else 1] for one in files]
        return SimpleNamespace(column=column, toArray=lambda: column)

    packages = {
        "org.apache.hadoop.fs.Path": Root,
        "org.apache.hadoop.util.functional.RemoteIterators": SimpleNamespace(toList=Files),
        "org.apache.commons.collections4.functors.InvokerTransformer": SimpleNamespace(invokerTransformer=str),
        "org.apache.commons.collections4.CollectionUtils": SimpleNamespace(collect=collect),
        "org.apache.commons.lang3.StringUtils": SimpleNamespace(join=lambda of, between: between.join(of.column)),
        "java.util.Arrays": SimpleNamespace(deepToString=lambda array: f"[{', '.join(array)}]"),
    }

    class Package:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, name: str) -> Any:
            full = f"{self.name}.{name}".lstrip(".")
            return packages.get(full, Package(full))

    return Package("")


def test_blocks_of_all_files_of_a_region_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region is the first name below the path: a file itself, or all files below a directory; hidden names are
    ignored."""
    tree = {
        "hdfs://n/data/t/r1/cf/f1": "[0,100,a,b, 100,20,b,c]",
        "hdfs://n/data/t/r1/cf/f2": "[0,3(corrupt),a]",
        "hdfs://n/data/t/r2": "[0,7,c]",
        "hdfs://n/data/t/_SUCCESS": "[0,1,a]",
        "hdfs://n/data/t/r2x/.tmp/f": "[0,1,a]",
        "hdfs://n/data/t/r3/f": "[]",
        "hdfs://n/data/t/r3/g": "null",
        "hdfs://n/data/t/r4/lost": "[0,9]",
    }
    monkeypatch.setattr("regions.plan.spark.locate.CHUNK_FILES", 3)
    found, told = LocalBytes(), []
    locate(java(tree), None, "hdfs://n/data/t/", found, told.append)
    assert found.bytes == {("r1", "a"): 103, ("r1", "b"): 120, ("r1", "c"): 20, ("r2", "c"): 7}
    assert told == [3, 4, 6]
    blocks = found.blocks()
    assert (blocks.region_id.tolist(), blocks.bytes.tolist()) == (["r1", "r1", "r1", "r2"], [103, 120, 20, 7])
    assert len(with_blocks(blocks, blocks)) == 8


def test_a_path_that_is_not_there() -> None:
    """An input with a missing path is invalid, which differs from having no locality."""
    with pytest.raises(BadInput, match="there is no hdfs://n/x"):
        locate(java({}, there=False), None, "hdfs://n/x", LocalBytes(), lambda _: None)


def test_a_process_without_java_refuses_paths(tmp_path: Path) -> None:
    """`python -m regions.plan` would ignore the locality that the input asks for."""
    write_snapshot(tmp_path / "in", Snapshot.of([RegionRow("a", "t")], [ServerRow("s", "h")]), Params())
    (tmp_path / "in" / "paths.csv").write_text("table_id,path\nt,file:///data\n")
    words = [sys.executable, "-m", "regions.plan", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "rk plan create --input" in json.loads(done.stdout.splitlines()[-1])["message"]


def test_the_table_of_paths(tmp_path: Path) -> None:
    """It may be missing and may repeat rows; the error names an incomplete row."""
    assert read_paths(tmp_path) == []
    table = tmp_path / "paths.csv"
    table.write_text("path,table_id\nhdfs://n/b,u\nhdfs://n/a,t\nhdfs://n/a,t\n")
    assert read_paths(tmp_path) == [("t", "hdfs://n/a"), ("u", "hdfs://n/b")]
    table.write_text("path,table_id\n,t\n")
    with pytest.raises(BadInput, match="without path"):
        read_paths(tmp_path)
