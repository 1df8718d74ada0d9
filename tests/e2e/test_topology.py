"""Clusters by topology files: two on one machine, one of them grown, stopped and started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clusters import free_base_port, local_up, processes_of, run_rk

pytestmark = pytest.mark.e2e

FILE = """# a small one
[cluster]
name = "{name}"
base-port = {port}
[store]
count = 1
[masters]
count = 1
[servers]
count = 1
"""


def rk_json(*words: str) -> list[dict[str, Any]]:
    """Run a command that must succeed; return the lines of its JSON."""
    done = run_rk(*words, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_cluster_grows_and_starts_again_as_it_was(tmp_path: Path) -> None:
    """A server, a master and two store nodes are added beside another cluster; rows, files and members agree."""
    file = tmp_path / "one.toml"
    file.write_text(FILE.format(name="one", port=free_base_port()))
    other = tmp_path / "two.toml"
    other.write_text(FILE.format(name="two", port=free_base_port()))
    data = tmp_path / "one-data"
    options = ("--plan-engine", "greedy")
    with local_up(tmp_path / "two-data", "--topology", str(other), "--no-table", *options) as second:
        second.event("up")
        with local_up(data, "--topology", str(file), "--regions", "4", *options) as up:
            up.event("up")
            assert run_rk("put", "packages", "k", "v", "--data-dir", str(data)).returncode == 0
            for kind, count in (("server", 1), ("master", 1), ("store", 2)):
                said = rk_json("up", "add", kind, "--count", str(count), "--topology", str(file))
                assert [one["event"] for one in said].count("added") == count
            nodes = json.loads(run_rk("coord", "list", "--json", "--data-dir", str(data)).stdout)["nodes"]
            assert [(node["id"], node["role"]) for node in nodes] == [(n, "participant") for n in (1, 2, 3)]
            refused = run_rk("up", "add", "server", "--rack", "r9", "--data-dir", str(data))
            assert refused.returncode == 1
            assert "gives racks by their count" in refused.stderr
            assert up.stop() == 0, up.said()
        assert "joined = [2, 3]" in file.read_text()
        with local_up(data, "--topology", str(file), *options) as up:
            cluster = up.event("up")["cluster"]
            assert [len(cluster[kind]) for kind in ("coord", "masters", "servers")] == [3, 2, 2]
            got = run_rk("get", "packages", "k", "--data-dir", str(data))
            assert got.stdout.strip() == "v", got.stderr
            assert up.stop() == 0, up.said()
        assert run_rk("status", "--data-dir", str(tmp_path / "two-data")).returncode == 0
        assert second.stop() == 0
    assert processes_of(tmp_path) == []
