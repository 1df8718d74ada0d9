"""Alarms: records that an auditor writes below `/alarms` when a rule of `regions/diagnose/invariants.py` is broken."""

from __future__ import annotations

import msgspec


class SliceStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step in the slice of history of an alarm; "" means no znode. `missed` steps before this one were not
    observed."""

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
    """A broken rule, the replica that broke it, and the steps that led to it. Value of `/alarms/<alarm_id>`."""

    alarm_id: str
    at_ms: int
    rule: str
    #: Name of the replica's transition, `<region_id>-<replica>`; "" for the epoch.
    key: str
    text: str
    steps: tuple[SliceStep, ...] = ()
    #: Uuid of the master whose auditor raised the alarm.
    raised_by: str = ""
