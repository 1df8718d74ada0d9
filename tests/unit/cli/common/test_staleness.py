"""`--max-stale`, `--min-zxid`, `--masters`: valid values, and errors for invalid ones (FW-01, MF-16)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.common import connect
from cli.common.connect import MastersAlone
from cli.common.errors import UsageFaultError
from cli.common.local import Shape, design, knows_masters_alone, write_cluster
from cli.common.options import Globals, parse_addresses
from cli.common.staleness import duration_ms, in_words, point_ms, zxid_of
from cli.tables import table
from regions import messages as ms
from regions.messages.staleness import AsOf, Bound

#: 2026-11-23 20:05:43 UTC.
NOW_MS = 1_795_464_343_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2s", 2_000),
        ("500ms", 500),
        ("2", 2_000),
        ("0s", 0),
        ("1.5s", 1_500),
        ("1m", 60_000),
        ("2h", 7_200_000),
        (" 3 s ", 3_000),
    ],
)
def test_times_as_people_write_them(text: str, expected: int) -> None:
    """A bare number is seconds."""
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1s", "2w", "s", "1e3", "12345678901s", 400 * "9"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """The error has an example."""
    with pytest.raises(UsageFaultError) as refused:
        duration_ms(text)
    assert "2s" in refused.value.hint


@pytest.mark.parametrize(("text", "expected"), [("0x1f3", 499), ("499", 499), ("0", 0)])
def test_zxids_in_both_notations(text: str, expected: int) -> None:
    """As `rk status` prints them, and in decimals."""
    assert zxid_of(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1f3"])
def test_what_is_no_zxid_is_refused(text: str) -> None:
    """The error has an example."""
    with pytest.raises(UsageFaultError) as refused:
        zxid_of(text)
    assert "0x1f3" in refused.value.hint


def test_an_age_is_told_in_one_line() -> None:
    """The line names the master, the age, and the zxid for the next request."""
    said = in_words(AsOf(320, 0x1F3, "standby", "h:1"))
    assert said == "data at most 0.32 s old when the request was sent (zxid 0x1f3), from the standby h:1"


@pytest.mark.parametrize("text", ["127.0.0.1", "a:x", "a:1,", "a:99999"])
def test_a_wrong_address_of_a_master_is_named(text: str) -> None:
    """The error names the wrong part and the right form."""
    with pytest.raises(UsageFaultError, match="master address"):
        parse_addresses(text, "master", "--masters a:1")


def test_a_command_that_reads_the_store_says_that_it_needs_one() -> None:
    """Masters alone are not enough for such a command."""
    with pytest.raises(UsageFaultError) as refused:
        MastersAlone(["127.0.0.1:1"]).tables()
    assert "--store" in refused.value.hint


def test_masters_of_the_local_cluster_have_its_store(tmp_path: Path) -> None:
    """MF-16: naming masters must not take the store away from commands that read it."""
    given = Globals()
    given.data_dir = str(tmp_path)
    given.masters = "127.0.0.1:25031"
    assert knows_masters_alone(given)
    shape = Shape(1, 1, 1, 1, base_port=25_000, outside_store=None, root="/rk", plan_engine="greedy")
    write_cluster(design(shape, tmp_path), tmp_path)
    assert not knows_masters_alone(given)
    given.masters = "127.0.0.1:25031,10.0.0.1:1"
    assert knows_masters_alone(given)


class Asked:
    """Stands for the masters: keeps the requests."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    requests: list[Any] = []

    def ask(self, message: Any, expect: Any, timeout_s: float) -> Any:
        self.requests.append(message)
        return ms.Tables([], as_of=AsOf(7, 9, "standby", "h:1"))


def test_the_bound_reaches_the_masters_and_the_age_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """FW-01: with a bound any master may answer, and reports its age; without a bound no age is printed."""
    monkeypatch.setattr(connect, "MasterClient", Asked)
    Asked.requests.clear()
    bounded = CliRunner().invoke(table, ["list", "--masters", "h:1", "--max-stale", "2s"], obj=Globals())
    assert bounded.exit_code == 0, bounded.output
    assert "from the standby h:1" in bounded.output
    plain = CliRunner().invoke(table, ["list"], env={"RK_MASTERS": "h:1"}, obj=Globals())
    assert "from the standby" not in plain.output
    assert [one.bound for one in Asked.requests] == [Bound(max_ms=2_000), ms.NO_BOUND]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", NOW_MS - 900_000),
        ("2h", NOW_MS - 7_200_000),
        ("2026-11-23T13:00Z", 1_795_438_800_000),
        ("2026-11-23 14:00:00+01:00", 1_795_438_800_000),
        ("2026-11-23T13:00", 1_795_438_800_000),
        ("2026-11-23", 1_795_392_000_000),
        ("13:00", 1_795_438_800_000),
        ("13:00:05", 1_795_438_805_000),
    ],
)
def test_points_in_time_as_people_write_them(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """B9: a duration before now, a date, a time of this day; local time without a zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert point_ms(text, NOW_MS, "--since") == expected
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("text", ["soon", "", "25:00", "2026-13-01", "-5m"])
def test_what_is_no_point_in_time_is_refused(text: str) -> None:
    with pytest.raises(UsageFaultError, match=r"--until .* is neither a duration nor a point in time"):
        point_ms(text, NOW_MS, "--until")
