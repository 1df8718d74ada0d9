"""`rk plan` on files: create, show, draw, compare, explain; and every error as a sentence (N4, N9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.common.errors import ExitStatus
from cli.main import run
from cli.plan import make
from regions.plan import BlockRow, LastRow, Params, Plan, PlanError, RegionRow, ServerRow, Snapshot, plan
from regions.plan.artifact.files import read_params, read_snapshot, write_snapshot
from tests.support.markup import check_report

pytest.importorskip("pyarrow")

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return an input of twelve regions, all on the first of three servers; the third has a name with special
    characters."""
    regions = [RegionRow(f"r{n:02d}", "orders", 100 + n, start_key=f"k{n:02d}" if n else "") for n in range(12)]
    servers = [ServerRow("s1", "h1", "a"), ServerRow("s2", "h2", "b"), ServerRow(EVIL, "h3", "c&d")]
    snapshot = Snapshot.of(
        regions, servers, [BlockRow("r00", "h2", 70)], [LastRow(r.region_id, 0, "s1") for r in regions]
    )
    write_snapshot(tmp_path / "in", snapshot, Params())
    return tmp_path / "in"


def _made(source: Path, name: str, capsys: pytest.CaptureFixture[str], engine: str = "greedy") -> Path:
    directory = source.parent / name
    assert run(["plan", "create", "--input", str(source), "--output", str(directory), "--engine", engine]) == 0
    assert "planning with" in capsys.readouterr().err
    return directory


def test_a_plan_of_files_is_made_shown_compared_and_explained(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No cluster is needed."""
    one = _made(source, "one", capsys)
    assert run(["plan", "show", str(one), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [server["after"] for server in shown["figures"]["servers"]] == [4, 4, 4]
    assert (shown["figures"]["stay"], shown["figures"]["move"]) == (4, 8)
    assert shown["manifest"]["origin"] == "files"
    assert run(["plan", "diff", str(one), str(_made(source, "two", capsys)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"same": 12, "moves": [], "added": [], "removed": []}
    for name, found in (("orders:k05zz", "r05"), ("r07", "r07"), ("orders:a", "r00")):
        assert run(["plan", "explain", name, "--plan", str(one), "--json"]) == 0
        reason = json.loads(capsys.readouterr().out)["reason"]
        assert (reason["region_id"], len(reason["replicas"][0]["alternatives"])) == (found, 2)
    # Without another plan: compared with the places in its own input.
    for words in (["diff", str(one)], ["diff", str(one), "input"]):
        assert run(["plan", *words, "--json"]) == 0
        moves = json.loads(capsys.readouterr().out)["moves"]
        ways = sorted((move["source"], move["destination"]) for move in moves)
        assert ways == sorted(4 * [("s1", "s2")] + 4 * [("s1", EVIL)])
    assert run(["plan", "explain", "r00", "--plan", str(one)]) == 0
    assert "replica 0 was on s1" in capsys.readouterr().out


def test_the_same_places_by_two_engines_are_two_plans(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster keeps a record for each id. Tried: by the digest alone both have one id."""
    pytest.importorskip("ortools")
    ids = set()
    for engine in ("greedy", "flow"):
        assert run(["plan", "show", str(_made(source, engine, capsys, engine)), "--json"]) == 0
        manifest = json.loads(capsys.readouterr().out)["manifest"]
        assert manifest["engine"] == engine
        ids.add(manifest["plan_id"])
        assert manifest["plan_id"] == f"plan-{engine}-{manifest['digest'][:12]}"
    assert len(ids) == 2


def test_the_picture_is_one_file_without_scripts(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names are escaped, every element is closed, and nothing is loaded from elsewhere."""
    one = _made(source, "one", capsys)
    html = source.parent / "plan.html"
    assert run(["plan", "show", str(one), "--html", str(html)]) == 0
    text = html.read_text()

    check_report(text)
    assert "c&amp;d" in text
    assert text.count("<svg") >= 4


def test_mistakes_are_sentences(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, the right exit status, and a remedy."""
    one = _made(source, "one", capsys)
    nothing = str(source.parent / "nothing")
    unfinished = source.parent / "unfinished"
    unfinished.mkdir()
    for words, status, text in (
        (["create", "--input", str(source), "--output", str(one)], ExitStatus.REFUSED, "already contains a plan"),
        (["create", "--input", nothing, "--output", nothing + "2"], ExitStatus.USAGE, "is no directory"),
        (["show", nothing], ExitStatus.NOT_FOUND, "does not exist"),
        (["show", str(unfinished)], ExitStatus.NOT_FOUND, "no finished plan"),
        (["show", str(one), "--html", f"{nothing}/x.html"], ExitStatus.REFUSED, "cannot be written"),
        (["explain", "r", "--plan", str(one)], ExitStatus.REFUSED, "matches 12 regions"),
        (["explain", "q", "--plan", str(one)], ExitStatus.NOT_FOUND, "no region 'q'"),
        (["explain", "nosuch:k", "--plan", str(one)], ExitStatus.NOT_FOUND, "no table 'nosuch'"),
        (["diff", str(one), nothing], ExitStatus.NOT_FOUND, "does not exist"),
    ):
        assert run(["plan", *words]) == status, words
        errors = capsys.readouterr().err
        assert text in errors, errors
    part = one / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    assert run(["plan", "show", str(one)]) == ExitStatus.REFUSED
    assert "the plan is invalid" in capsys.readouterr().err


def test_a_path_needs_java_and_says_so(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locality was requested, so without Java there is no plan, and no file is left."""
    monkeypatch.setenv("JAVA_HOME", str(source))
    made = source.parent / "made"
    words = ["plan", "create", "--input", str(source), "--output", str(made)]
    for path, status, said in (
        ("orders=file:///data", ExitStatus.REFUSED, "locating blocks needs Java"),
        ("orders", ExitStatus.USAGE, "is not TABLE=URI"),
        ("nosuch=file:///data", ExitStatus.NOT_FOUND, "table 'nosuch' does not exist"),
    ):
        assert run([*words, "--path", path]) == status
        assert said in capsys.readouterr().err
    assert list(made.iterdir()) == []


def test_greedy_takes_over_from_spark_that_is_late(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or if Spark is missing: there is a plan in both cases, and its note names the reason."""
    directory = source.parent / "late"
    words = ["plan", "create", "--input", str(source), "--output", str(directory), "--engine", "spark"]
    assert run([*words, "--deadline", "0.05", "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)["manifest"]
    assert manifest["engine"] == "greedy"
    assert manifest["note"].startswith("spark: ")


def test_the_plan_is_the_same_when_spark_fails(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N9: with time for it, the engine that takes over makes the bytes that Spark would have made."""

    def fails(*_: object) -> Plan:
        raise PlanError("no executor")

    monkeypatch.setattr(make, "_by_job", fails)
    directory = source.parent / "same"
    words = ["plan", "create", "--input", str(source), "--output", str(directory), "--engine", "spark", "--json"]
    assert run(words) == 0
    manifest = json.loads(capsys.readouterr().out)["manifest"]
    assert (manifest["engine"], manifest["note"]) == ("sharded", "spark: no executor")
    assert manifest["digest"] == plan(read_snapshot(source), read_params(source), engine="sharded").digest


@pytest.mark.parametrize("engine", ["flow", "spark"])
def test_a_process_of_its_own_is_ended_at_the_deadline(
    engine: str, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the end of its process stops the exact flow; greedy makes the plan, and the note names the reason."""
    monkeypatch.setattr(make, "FLOW_ALONE", 1)
    directory = source.parent / "late"
    words = ["plan", "create", "--input", str(source), "--output", str(directory), "--engine", engine, "--json"]
    assert run([*words, "--deadline", "0.05"]) == 0
    manifest = json.loads(capsys.readouterr().out)["manifest"]
    assert (manifest["engine"], manifest["note"].startswith(f"{engine}: ")) == ("greedy", True)


def test_the_flow_in_its_own_process_makes_the_same_plan(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow plans the copy of the input, and proves its value."""
    pytest.importorskip("ortools")
    made = []
    for alone in (1, 10**9):
        monkeypatch.setattr(make, "FLOW_ALONE", alone)
        directory = source.parent / f"flow-{alone}"
        words = ["plan", "create", "--input", str(source), "--output", str(directory), "--engine", "flow", "--json"]
        assert run(words) == 0
        manifest = json.loads(capsys.readouterr().out)["manifest"]
        made.append((manifest["engine"], manifest["note"], manifest["digest"], manifest["stats"]))
        assert not (directory / ".job").exists()
    assert made[0] == made[1]


def test_a_script_learns_by_the_status_whether_anything_would_change(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As terraform's -detailed-exitcode, with a status of its own, because 2 is a wrong command line."""
    one = str(_made(source, "one", capsys))
    assert run(["plan", "diff", one]) == ExitStatus.OK
    assert run(["plan", "diff", one, "--detailed-exitcode"]) == ExitStatus.DIFFERENT
    assert run(["plan", "diff", one, one, "--detailed-exitcode"]) == ExitStatus.OK


def test_a_target_shows_its_part_of_the_moves(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By table or server. Tried: with `touches` always true the four moves to s2 are eight."""
    one = str(_made(source, "one", capsys))
    for words, count in ((["s2"], 4), (["orders"], 8), (["s2", EVIL], 8)):
        targets = [word for target in words for word in ("--target", target)]
        assert run(["plan", "diff", one, *targets, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["moves"]) == count
    assert run(["plan", "diff", one, "--target", "s2"]) == 0
    assert "; moves of s2 alone: 4 replicas at the same place, 4 elsewhere" in capsys.readouterr().out
    assert run(["plan", "diff", one, "--target", "s9"]) == ExitStatus.NOT_FOUND
    assert "--target s9: the plan has no such table or server" in capsys.readouterr().err
