"""cluster.json on a disk that rejects writes for a while."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cli.common.local import CLUSTER_FILE, Shape, design, read_cluster
from cli.common.views.display import output_may_fail
from cli.up import cluster_file
from cli.up.cluster_file import RETRY_S, ClusterFile

SHAPE = Shape(1, 1, 1, 1, 21800, None, "", "greedy")


def full(*_: object) -> None:
    """Raise the error of a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier, a full disk stopped the whole cluster."""
    local = design(SHAPE, tmp_path)
    lines: list[str] = []
    file = ClusterFile(local, tmp_path, lines.append)
    file.write()
    assert file.wait_s() is None
    with monkeypatch.context() as patched:
        patched.setattr(cluster_file, "write_cluster", full)
        local.daemons()[0].pid = 4711
        file.write()
        file.write()
    assert file.wait_s() == RETRY_S
    [line] = lines
    assert "No space left on device" in line
    assert "keeps running" in line
    before = read_cluster(tmp_path)
    assert before is not None
    assert before.daemons()[0].pid == 0
    file.write()
    assert file.wait_s() is None
    assert "written again" in lines[1]
    after = read_cluster(tmp_path)
    assert after is not None
    assert after.daemons()[0].pid == 4711


def test_a_write_that_fails_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file is not damaged either."""
    file = ClusterFile(design(SHAPE, tmp_path), tmp_path, lambda line: None)
    file.write()
    before = (tmp_path / CLUSTER_FILE).read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        file.write()
    assert [one.name for one in tmp_path.iterdir()] == [CLUSTER_FILE]
    assert (tmp_path / CLUSTER_FILE).read_bytes() == before


def test_lines_are_lost_where_the_output_is_full() -> None:
    """A closed reader is not a full disk."""
    with output_may_fail():
        full()
    with pytest.raises(BrokenPipeError), output_may_fail():
        raise BrokenPipeError
