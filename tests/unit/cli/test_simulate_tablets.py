"""`rk simulate --tablets`: its verdict, its report, refused options."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from cli.common.errors import ExitStatus
from cli.common.options import Globals
from cli.simulate import simulate
from cli.tablets.simulate import TabletsPlan, simulate_tablets
from regionserver.tablets.host.group import Group
from simulation.tablets.run import SIZES, run_tablets


def test_a_seed_gives_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        simulate_tablets(TabletsPlan([1], None, 1.0, splits=False), trace=False, keep_going=False, as_json=False) == 0
    )
    assert "tablets: 1 run, " in capsys.readouterr().out


def test_the_report_for_programs_counts_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate_tablets(TabletsPlan([1, 2], 4, 1.0, splits=True), trace=False, keep_going=False, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["seeds"], report["failed"]) == (True, 2, [])
    assert report["counts"]["beats"] > 10


def test_a_violation_names_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "propose", lambda self, request, payload: 1 / 0)
    code = simulate_tablets(TabletsPlan([3, 4], 3, 2.0, splits=False), trace=False, keep_going=True, as_json=False)
    out = capsys.readouterr().out.replace("\n", " ")
    assert code == ExitStatus.REFUSED
    assert "replay: rk simulate --tablets --seed 3 --servers 3 --duration 2 --trace" in out
    assert "did not hold in 2 runs" in out


def test_seeds_choose_the_number_of_servers() -> None:
    assert {run_tablets(seed, trouble_s=0.1).servers for seed in range(1, 5)} == set(SIZES)


@pytest.mark.parametrize(
    "arguments",
    [["--drill", "server-crash"], ["--masters", "3"], ["--regions", "4"], ["--servers", "9"], ["--folder", "x"]],
)
def test_options_of_clusters_are_refused(arguments: list[str]) -> None:
    found = CliRunner().invoke(simulate, ["--tablets", "--seed", "1", *arguments], obj=Globals())
    assert found.exit_code != 0
    assert "--tablets" in str(found.exception) or "servers" in str(found.exception)
