"""The trace checker accepts the traces of sound groups and rejects violations of Raft's rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from coord.raft.messages import FOLLOWER, LEADER
from coord.raft.trace import Event, TraceModel, TraceViolation
from coord.server.admin.trace_file import TraceFaultError, TraceFile, check_traces
from tests.support.store_nodes import StoreNodes

START: Event = ["start", 0, 0, 0, 0, 0, 0, [], True]


def _start(node: int, **changed: Any) -> Event:
    names = ("do", "node", "term", "vote", "snapshot", "offset", "offset_term", "runs", "is_new")
    return list({**dict(zip(names, START, strict=True)), "node": node, **changed}.values())


def _model(*histories: list[Event]) -> TraceModel:
    model = TraceModel()
    for node, history in enumerate(histories, 1):
        for event in [_start(node), *history]:
            model.take(node, event)
    model.finish()
    return model


LED = [["term", 1, 1], ["append", 1, 0, [[1, 77]]], ["role", 1, LEADER, 1], ["commit", 1]]
FOLLOWED = [["term", 1, 1], ["vote", 1, 1], ["append", 1, 0, [[1, 77]]], ["ack", 1], ["commit", 1]]

BROKEN: dict[str, tuple[list[Event], list[Event]]] = {
    "election safety": (LED, [["term", 1, 2], ["role", 1, LEADER, 2]]),
    "votes for 1 and for 3": (LED, [["vote", 1, 1], ["vote", 1, 3]]),
    "its vote in term 1 changes": (LED, [["term", 1, 1], ["term", 1, 3]]),
    "its term falls": (LED, [["term", 2, 1], ["term", 1, 1]]),
    "log matching": (LED, [["append", 1, 0, [[1, 78]]]]),
    "commits 2/1, others 1/1": (LED, [["append", 1, 0, [[2, 5]]], ["commit", 1]]),
    "replaces entry 1": (LED, [*FOLLOWED, ["append", 1, 0, [[2, 5]]]]),
    "leader completeness": (LED, [["term", 2, 2], ["append", 1, 0, [[2, 5]]], ["role", 2, LEADER, 2]]),
    "its log ends at 1": (LED, [["append", 1, 0, [[1, 77]]], ["commit", 2]]),
    "after a log that ends": (LED, [["append", 3, 1, [[1, 79]]]]),
    "which no node has committed": (LED, [["install", 1, 4]]),
    "forgotten its vote": (LED, [*FOLLOWED, _start(2, term=1, runs=[[1, 1]], is_new=False)]),
    "voted in term 1 and starts in term 0": (LED, [*FOLLOWED, _start(2, runs=[[1, 1]], is_new=False)]),
    "and had acknowledged 1/1": (LED, [*FOLLOWED, _start(2, term=1, vote=1, is_new=False)]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_a_rule_is_refused(what: str) -> None:
    """One history for each rule."""
    with pytest.raises(TraceViolation, match=what):
        _model(*BROKEN[what])


def test_a_sound_history_is_taken() -> None:
    """A leader, a follower, a restart with all data and one with a new disk."""
    again = [_start(2, term=1, vote=1, runs=[[1, 1]], is_new=False), ["commit", 1]]
    model = _model(LED, [*FOLLOWED, *again, _start(2), ["install", 1, 1]])
    assert model.leaders() == {1: 1}
    assert model.committed() == 1


def _trace_of_a_store(folder: Path) -> list[Path]:
    """Return the traces of three real nodes, one of which is killed and comes back."""
    nodes = StoreNodes(3)
    files = {i: TraceFile(folder / f"{i}.trace") for i in nodes.nodes}
    for i, node in nodes.nodes.items():
        files[i].begin(node.core, is_new=True)
        node.tracer = files[i]
    nodes.leader()
    nodes.run(5)
    late = nodes.follower().settings.node_id
    nodes.crash(late)
    nodes.run(3)
    nodes.start(late)
    again = TraceFile(folder / f"{late}.trace")
    again.begin(nodes.nodes[late].core, is_new=False)
    nodes.nodes[late].tracer = again
    nodes.run(5)
    return [folder / f"{i}.trace" for i in files]


def test_the_trace_of_a_real_store_holds_and_a_changed_one_does_not(tmp_path: Path) -> None:
    """Files in any order; a line cut off by a kill is skipped, a false one is named with file and line."""
    paths = _trace_of_a_store(tmp_path)
    model = check_traces(paths[::-1])
    assert model.committed() >= 1
    assert model.counts["start"] == 4
    with paths[0].open("ab") as file:
        file.write(b'["commit",')
    check_traces(paths)
    lines = paths[0].read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith('["role",1,'))
    lines.insert(place + 1, json.dumps(["role", 0, FOLLOWER, 0]))
    paths[0].write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceFaultError, match=rf"1.trace:{place + 2}: .*its term falls"):
        check_traces(paths)


def test_the_command_says_what_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rk coord check-trace`: 0 and a summary, 1 and the line, 2 for an invalid trace."""
    paths = [str(path) for path in _trace_of_a_store(tmp_path)]
    assert run(["coord", "check-trace", *paths]) == 0
    assert "holds:" in capsys.readouterr().out
    assert run(["coord", "check-trace", "--json", *paths]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is True
    assert report["starts"] == 4
    Path(paths[0]).write_text('["commit", 1]\n["commit", 2]\n')
    assert run(["coord", "check-trace", *paths]) == 1
    told = capsys.readouterr().out
    assert f"{paths[0]}:1: " in told
    assert "before its start" in told
    assert run(["coord", "check-trace", "--json", *paths]) == 1
    assert json.loads(capsys.readouterr().out)["line"] == 1
    Path(paths[0]).write_text("")
    assert run(["coord", "check-trace", paths[0]]) == 2
    assert "--trace FILE" in capsys.readouterr().err
