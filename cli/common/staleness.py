"""Times on command lines; `--max-stale` and `--min-zxid`, with which a standby may answer, and the age that a reply
shows (FW-01)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from cli.common import output
from cli.common.errors import UsageFaultError
from regions.messages import NO_BOUND
from regions.messages.staleness import AsOf, Bound

#: Ten digits at most: of every unit, so many milliseconds fit into 64 bits.
_DURATION: Final = re.compile(r"(\d{1,10}(?:\.\d+)?)\s*(ms|s|m|h|d|)")
_UNITS_MS: Final = {"ms": 1.0, "s": 1_000.0, "": 1_000.0, "m": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}


def duration_ms(text: str, option: str = "--max-stale") -> int:
    """Return `2s`, `500ms`, `1.5m`, `2h`, `7d`, or seconds as milliseconds.

    Raise UsageFaultError that names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UsageFaultError(f"{option} {text!r} is not a duration", "Write it as 2s, 500ms or 1m.")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def point_ms(text: str, now_ms: int, option: str) -> int:
    """Return a point in time in milliseconds since 1970.

    `text` is a duration before now (`15m`), a point in time by ISO 8601 (`2026-11-22T13:00`, `2026-11-22 13:00:05Z`), a
    day, or a time of this day (`13:00`). Without a zone it is local time. Raise UsageFaultError that names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is not None and found[2]:
        return now_ms - round(float(found[1]) * _UNITS_MS[found[2]])
    today = datetime.fromtimestamp(now_ms / 1000).date()
    for candidate in (text.strip(), f"{today}T{text.strip()}"):
        try:
            return int(datetime.fromisoformat(candidate).timestamp() * 1000)
        except ValueError:
            continue
    raise UsageFaultError(
        f"{option} {text!r} is neither a duration nor a point in time",
        "Write it as 90s, 15m or 2h before now, or as 2026-11-22T13:00, 2026-11-22 or 13:00.",
    )


def zxid_of(text: str, option: str = "--min-zxid") -> int:
    """Parse a zxid in decimal, or in hexadecimal after 0x. Raise UsageFaultError that names the option."""
    try:
        zxid = int(text, 0)
    except ValueError:
        zxid = -1
    if zxid < 0:
        raise UsageFaultError(
            f"{option} {text!r} is not a zxid", "Write it as 0x1f3, as `rk` prints it, or in decimal."
        )
    return zxid


def stale_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add both options to a command, which receives them as `bound`."""

    @click.option("--max-stale", metavar="TIME", help="Let a standby answer with data at most this old: 2s, 500ms.")
    @click.option("--min-zxid", metavar="ZXID", help="Let a standby answer that has applied at least this zxid.")
    @functools.wraps(command)
    def bounded(*args: Any, max_stale: str | None, min_zxid: str | None, **kwargs: Any) -> Any:
        bound = NO_BOUND
        if max_stale is not None or min_zxid is not None:
            age = -1 if max_stale is None else duration_ms(max_stale)
            bound = Bound(age, 0 if min_zxid is None else zxid_of(min_zxid))
        return command(*args, bound=bound, **kwargs)

    return bounded


def print_age(as_of: AsOf | None, bound: Bound) -> None:
    """Print the age of the answer if a staleness was allowed."""
    if as_of is not None and not bound.is_none:
        output.console().print(in_words(as_of), style="dim")


def in_words(as_of: AsOf) -> str:
    """Return one line for people."""
    return (
        f"data at most {as_of.stale_ms / 1000:.2f} s old when the request was sent (zxid {as_of.zxid:#x}), "
        f"from the {as_of.role} {as_of.master}"
    )


def print_json(payload: object, as_of: AsOf | None, bound: Bound, name: str) -> None:
    """Print the report; if a staleness was allowed, below `name` with the age beside it."""
    output.print_json(payload if bound.is_none else {"as_of": as_of, name: payload})
