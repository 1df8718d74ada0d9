"""`rk plan` on malformed input (`tests.support.hostile`): a plan that keeps the rules, or one line with the reason."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from cli.common.errors import ExitStatus
from cli.main import run
from regions.plan.artifact.files import MANIFEST, read_plan
from tests.support.hostile import broken_rules, nasty, write_nasty

pytest.importorskip("pyarrow")
pytest.importorskip("ortools")

Said = pytest.CaptureFixture[str]


def _rk(said: Said, *words: str) -> tuple[int, str, str]:
    """Run one command. Its output must never show a place in the program."""
    status = run(list(words))
    found = said.readouterr()
    assert "Traceback" not in found.err, found.err
    assert found.err.strip() or status == ExitStatus.OK
    return status, found.out, found.err


def _create(said: Said, source: Path, output: Path, engine: str) -> tuple[int, str]:
    status, _, err = _rk(said, "plan", "create", "--input", str(source), "--output", str(output), "--engine", engine)
    assert (status == ExitStatus.OK) == (output / MANIFEST).exists(), err
    return status, err


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_or_a_reason(seed: int, tmp_path: Path, capsys: Said) -> None:
    """Both engines agree whether a plan exists; it keeps the rules; other orders of the rows give the same plan; it can
    be shown."""
    made = write_nasty(tmp_path / "in", seed)
    write_nasty(tmp_path / "again", seed, shuffle=1)
    found = {engine: _create(capsys, tmp_path / "in", tmp_path / engine, engine) for engine in ("greedy", "flow")}
    assert len({status for status, _ in found.values()}) == 1, (made.done, found)
    if found["greedy"][0] != ExitStatus.OK:
        assert "no plan: " in found["greedy"][1], made.done
        return
    for engine in found:
        plan, manifest = read_plan(tmp_path / engine)
        assert broken_rules(made.tables, list(plan.rows)) == [], made.done
        assert manifest.stats.violations == 0, (made.done, manifest.note)
    _create(capsys, tmp_path / "again", tmp_path / "second", "greedy")
    assert read_plan(tmp_path / "second")[0].digest == read_plan(tmp_path / "greedy")[0].digest, made.done
    page = tmp_path / "page.html"
    assert _rk(capsys, "plan", "show", str(tmp_path / "flow"), "--html", str(page))[0] == ExitStatus.OK
    assert "<b>&amp;" not in page.read_text(encoding="utf-8").replace("&lt;b&gt;&amp;amp;", "")
    assert _rk(capsys, "plan", "diff", str(tmp_path / "greedy"), str(tmp_path / "flow"))[0] == ExitStatus.OK
    for row in made.tables["regions"][:2]:
        _rk(capsys, "plan", "explain", row["region_id"] or "", "--plan", str(tmp_path / "flow"))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_files(seed: int, tmp_path: Path, capsys: Said) -> None:
    """There is a plan if the rest is readable, otherwise a line that names the file."""
    made = write_nasty(tmp_path / "in", seed, damage=True)
    status, err = _create(capsys, tmp_path / "in", tmp_path / "plan", "greedy")
    if status != ExitStatus.OK:
        assert status == ExitStatus.USAGE
        (line,) = [line for line in err.splitlines() if "no plan: " in line]
        assert "list index" not in line, (made.done, line)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("regions.csv", b"region_id,table_id,size_bytes\n\xff\xfe,t,1\n", "not UTF-8"),
        ("regions.csv", b"region_id,table_id,size_bytes\na,t\n", "near line 2: 2 cells, and the header has 3"),
        ("regions.csv", b"region_id,table_id,size_bytes\na,t,9999999999999999999\n", "near line 2: size_bytes: "),
        ("regions.csv", b"region_id,table_id,size_bytes\na,t,1.5\n", "near line 2: size_bytes: "),
        ("regions.csv", b"region_id,table_id,size_bytes,table_id\na,t,1,u\n", "column table_id occurs twice"),
        ("regions.csv", b"region_id,size_bytes\na,1\n", "no column table_id"),
        ("regions.csv", b"", "no column region_id, table_id, size_bytes"),
        ("regions.parquet", b"", "regions.parquet: "),
        ("regions.parquet", b"PAR1 and then nothing", "regions.parquet: "),
        ("params.json", b"\xff", "params.json: "),
    ],
)
def test_what_is_wrong_is_said(name: str, text: bytes, words: str, tmp_path: Path, capsys: Said) -> None:
    """The error names file, row and column."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "servers.csv").write_text("server_id,host\ns1,h1\n")
    if name == "params.json":
        (tmp_path / "in" / "regions.csv").write_text("region_id,table_id,size_bytes\na,t,1\n")
    (tmp_path / "in" / name).write_bytes(text)
    status, err = _create(capsys, tmp_path / "in", tmp_path / "plan", "greedy")
    assert status == ExitStatus.USAGE
    assert words in err


def test_a_byte_order_mark_and_directories_as_spark_writes_them(tmp_path: Path, capsys: Said) -> None:
    """Excel writes the mark before a table; Spark's `write.csv("regions.csv")` makes a directory."""
    (tmp_path / "in" / "regions.csv").mkdir(parents=True)
    (tmp_path / "in" / "servers.csv").write_text("\ufeffserver_id,host\r\ns1,h1\r\n", encoding="utf-8")
    (tmp_path / "in" / "regions.csv" / "part-0.csv").write_text("region_id,table_id,size_bytes\na,t,1\n")
    (tmp_path / "in" / "regions.csv" / "_SUCCESS").write_text("")
    assert _create(capsys, tmp_path / "in", tmp_path / "plan", "greedy")[0] == ExitStatus.OK
    assert list(read_plan(tmp_path / "plan")[0].rows) == [("a", 0, "s1")]


def test_edited_artefacts_are_refused(tmp_path: Path, capsys: Said) -> None:
    """`show` notices each file of a plan that is cut off, emptied, changed or removed."""
    seed = next(seed for seed in range(100) if not nasty(seed).done and len(nasty(seed).tables["regions"]) == 60)
    write_nasty(tmp_path / "in", seed)
    _create(capsys, tmp_path / "in", tmp_path / "plan", "greedy")
    chance = random.Random(1)
    for path in sorted(p.relative_to(tmp_path / "plan") for p in (tmp_path / "plan").rglob("*") if p.is_file()):
        data = (tmp_path / "plan" / path).read_bytes()
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 0x11
        for wrong in (data[: len(data) // 2], b"", bytes(flipped), None):
            shutil.rmtree(tmp_path / "bad", ignore_errors=True)
            shutil.copytree(tmp_path / "plan", tmp_path / "bad")
            (tmp_path / "bad" / path).unlink()
            if wrong is not None:
                (tmp_path / "bad" / path).write_bytes(wrong)
            status = _rk(capsys, "plan", "show", str(tmp_path / "bad"))[0]
            assert status != ExitStatus.OK or path.name == MANIFEST, (path, wrong and len(wrong))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parts", []),
        ("rows", -1),
        ("digest", "0"),
        ("inputs", []),
        ("parts", [{"file": "../../../etc/passwd", "rows": 1, "sha256": "0"}]),
        ("parts", 7),
        ("stats", {"violations": "many"}),
        ("params", None),
    ],
)
def test_edited_manifests_are_refused(field: str, value: object, tmp_path: Path, capsys: Said) -> None:
    """The manifest's statements about its files are checked, and their form."""
    write_nasty(tmp_path / "in", 0)
    (tmp_path / "in" / "regions.csv").unlink(missing_ok=True)
    (tmp_path / "in" / "regions.parquet").unlink(missing_ok=True)
    (tmp_path / "in" / "regions.csv").write_text("region_id,table_id,size_bytes\na,t,1\n")
    (tmp_path / "in" / "servers.parquet").unlink(missing_ok=True)
    (tmp_path / "in" / "servers.csv").write_text("server_id,host\ns1,h1\n")
    _create(capsys, tmp_path / "in", tmp_path / "plan", "greedy")
    manifest = json.loads((tmp_path / "plan" / MANIFEST).read_text())
    (tmp_path / "plan" / MANIFEST).write_text(json.dumps({**manifest, field: value}))
    for words in (["show", str(tmp_path / "plan")], ["explain", "a", "--plan", str(tmp_path / "plan")]):
        status, _, err = _rk(capsys, "plan", *words)
        assert status == ExitStatus.REFUSED, err
        assert "the plan is invalid: " in err
