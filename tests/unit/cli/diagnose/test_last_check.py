"""The record of the last `rk fsck`: bounded, errors first, with the steps that would help."""

from __future__ import annotations

from cli.diagnose.past.last_check import record_of
from regions.diagnose.fsck import Finding, Fix, FixKind
from regions.records.acts.checks import FINDINGS_MAX, TEXT_MAX
from regions.records.znodes import decode_fsck, encode


def test_errors_come_first_and_long_records_are_cut_off() -> None:
    """The counts stay those of all findings. Fails if `shortened` keeps the order, or all of them."""
    kind = next(iter(FixKind))
    warnings = [Finding("stray", f"s{at}", "x" * 2 * TEXT_MAX, is_warning=True) for at in range(FINDINGS_MAX)]
    error = Finding("hole", "t", "no region has these keys", fix=Fix(kind, "make a region"))
    record = record_of([*warnings, error], at_ms=7, took_s=1.234, deep=True, fixed=1)
    assert (record.errors, record.warnings, record.fixed, record.took_s) == (1, FINDINGS_MAX, 1, 1.23)
    assert len(record.findings) == FINDINGS_MAX
    assert (record.findings[0].problem, record.findings[0].step) == ("hole", "make a region")
    assert {len(one.text) for one in record.findings[1:]} == {TEXT_MAX}
    assert decode_fsck(encode(record)) == record
