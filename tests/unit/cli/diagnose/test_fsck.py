"""What `rk fsck` prints."""

from __future__ import annotations

import io

from rich.console import Console

from cli.common.names import Names
from cli.diagnose.fsck import FINDINGS_SHOWN, show_findings
from regions.diagnose.fsck import Finding


def printed(findings: list[Finding]) -> list[str]:
    text = io.StringIO()
    show_findings(findings, Names([], None), Console(file=text, width=200))
    return text.getvalue().splitlines()


def test_many_findings_of_one_problem_hide_no_other() -> None:
    """A dead server leaves a finding for each of its tablets: the first are printed, all are counted."""
    many = [Finding("few replicas", f"t.{number}", f"tablet {number}") for number in range(FINDINGS_SHOWN + 130)]
    lines = printed([*many, Finding("hole", "x", "table x has a hole")])
    assert sum("tablet " in one for one in lines) == FINDINGS_SHOWN
    assert "hole: table x has a hole" in lines
    assert "few replicas: and 130 more (--json has all)" in lines
    assert lines[-1] == f"{FINDINGS_SHOWN + 131} errors"


def test_findings_at_the_limit_are_all_printed() -> None:
    lines = printed([Finding("few replicas", f"t.{number}", "") for number in range(FINDINGS_SHOWN)])
    assert len(lines) == FINDINGS_SHOWN + 1
    assert printed([]) == ["nothing is wrong"]
