"""A store is upgraded node by node, and taken back before the level rises, by real processes of two builds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.tree.levels import SUPPORTED
from tests.support.helpers import PATIENCE_S, eventually
from tests.upgrade.builds import NEWER, rk_of
from tests.upgrade.store import NODES, MixedStore, Writer, play

pytestmark = pytest.mark.e2e


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MixedStore]:
    """Return a store that is not started."""
    made = MixedStore(tmp_path)
    try:
        yield made
    finally:
        made.close()


def verify(store: MixedStore) -> None:
    """Replay the logs of the stopped nodes with this build, whichever build wrote them, and compare the states."""
    run_rk("coord", "verify", *(str(store.data_dir(node)) for node in NODES))


def run_rk(*arguments: str) -> str:
    """Return the output of a command of this build, which must succeed."""
    command, environment, cwd = rk_of(NEWER, *arguments)
    env = {**os.environ, **environment}
    done = subprocess.run(command, check=False, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nodes_are_upgraded_taken_back_and_upgraded(store: MixedStore, older: Path) -> None:
    """The nodes have one state, no write is lost and no node ends, while random requests arrive that the two builds
    answer differently. The level rises when the last node of the older build is replaced, and not before."""
    for node in NODES:
        store.start(node, older)
    store.wait_ready()
    before = store.page(1).get("supported_level", 0)
    assert before < SUPPORTED, "the older build has this build's level"
    seed = 0
    with Writer(store.hosts).running() as writer:

        def check(*, level: int) -> None:
            nonlocal seed
            for _ in range(2):
                seed += 1
                play(store, seed)
            store.check_alike()
            assert {store.level(node) for node in store.processes} == {level}

        check(level=before)
        # Upgrade two of the nodes, with the leader, and take one back.
        leader = store.leader()
        follower, last = (node for node in NODES if node != leader)
        for node, root in ((follower, NEWER), (leader, NEWER), (follower, older), (follower, NEWER)):
            with writer.writing():
                store.replace(node, root)
                play(store, seed := seed + 1)
            check(level=before)
        with writer.writing():
            store.replace(last, NEWER)
            eventually(lambda: {store.level(node) for node in NODES} == {SUPPORTED}, what="the level rises")
        check(level=SUPPORTED)
        writer.check(store)
        # Any node may lead now.
        with writer.writing():
            store.replace(store.leader(), NEWER)
        check(level=SUPPORTED)
        writer.check(store)
    listed = json.loads(run_rk("coord", "list", "--json", "--store", store.hosts))
    assert listed["level"] == SUPPORTED
    assert {node["id"]: node["supported_level"] for node in listed["nodes"]} == dict.fromkeys(NODES, SUPPORTED)
    assert f"feature level {SUPPORTED}" in run_rk("coord", "list", "--store", store.hosts)
    for node in NODES:
        store.stop(node)
    verify(store)


def test_the_older_build_is_refused_behind_the_raise(store: MixedStore, older: Path) -> None:
    """On a directory that has the level the older build does not start; with an empty directory it gets no link, and
    the reason."""
    for node in NODES:
        store.start(node, NEWER)
    store.wait_ready()
    eventually(lambda: {store.level(node) for node in NODES} == {SUPPORTED}, what="the level rises")
    store.stop(3)
    store.start(3, older)
    assert store.processes[3].wait(PATIENCE_S) != 0
    said = store.log(3).strip().splitlines()[-1]
    assert "Traceback" not in store.log(3)
    assert "format 2 is not known" in said or f"feature level {SUPPORTED}" in said, said
    shutil.rmtree(store.data_dir(3))
    store.start(3, older)
    eventually(lambda: "the build of node 3 supports feature levels up to" in store.log(3), what="node 3 is told")
    assert f"start node 3 with a build that supports level {SUPPORTED}" in store.log(3)
    assert store.page(3)["applied_index"] == 0
    # A leader does not wait for it: the other two serve, and name the node that they reject.
    store.processes.pop(3).kill()
    store.check_alike()
    assert any("rejected a connection from a node that claims to be node 3" in store.log(node) for node in (1, 2))
