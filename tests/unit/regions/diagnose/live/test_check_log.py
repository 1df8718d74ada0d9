"""The log of the auditor's checks."""

from __future__ import annotations

from regions.diagnose.live.check_log import FINDINGS_MAX, AuditCheck, CheckFinding, CheckLog


def test_each_check_has_its_time_and_its_latest_findings() -> None:
    """A check without findings moves the time alone. Fails if `note` drops the findings of an earlier check."""
    log = CheckLog()
    log.note(AuditCheck.KEYS, 5, ["a hole", "an overlap"])
    log.note(AuditCheck.KEYS, 6, [])
    found = {one.name: one for one in log.figures()}
    keys = found[AuditCheck.KEYS]
    assert (keys.at_ms, keys.times, keys.found) == (6, 2, 2)
    assert keys.findings == [CheckFinding(5, "a hole"), CheckFinding(5, "an overlap")]
    assert (found[AuditCheck.OWNERS].at_ms, found[AuditCheck.OWNERS].times) == (0, 0)


def test_findings_are_bounded() -> None:
    """The latest FINDINGS_MAX are kept, all are counted."""
    log = CheckLog()
    log.note(AuditCheck.COPY, 1, [str(one) for one in range(FINDINGS_MAX + 5)])
    (copy,) = (one for one in log.figures() if one.name == AuditCheck.COPY)
    assert copy.found == FINDINGS_MAX + 5
    assert [one.text for one in copy.findings] == [str(one) for one in range(5, FINDINGS_MAX + 5)]
