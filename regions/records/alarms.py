"""Alarms: records that an auditor writes below `/alarms` when a rule of `regions/diagnose/invariants.py` is broken."""

from __future__ import annotations

import msgspec


class SliceStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step in the history slice of an alarm; "" stands for no znode. `missed` steps before it were not seen."""

    at_ms: int
    before: str
    after: str
    server: str = ""
    epoch: int = 0
    reason: str = ""
    attempt: int = 0
    error: str = ""
    missed: int = 0


class Alarm(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule was broken: which, by what, and the steps that led there. Value of `/alarms/<alarm_id>`."""

    alarm_id: str
    at_ms: int
    rule: str
    #: Name of the replica's transition, `<region_id>-<replica>`; "" for the epoch.
    key: str
    text: str
    steps: tuple[SliceStep, ...] = ()
    #: Who raised it first; filled in by the shell.
    raised_by: str = ""
