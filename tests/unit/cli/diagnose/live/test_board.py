"""The full screen of `rk watch --live`, drawn without a terminal; and the lines that the filters accept."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from cli.common.names import Names
from cli.diagnose.follow import Line, MembershipChange
from cli.diagnose.live.board import Board
from cli.diagnose.live.controls import Controls
from cli.diagnose.watch import Wanted
from regions.diagnose.health import Findings, Health, HealthVerdict, MasterFinding, Reason, StoreFinding

NOW = 1_000_000_000


def line(after: str, *, region: str = "t.1", at_ms: int = NOW, server: str = "server-1", table: str = "orders") -> Line:
    return Line(at_ms, table, region, 0, "", "", "", after, server, "", "assign", 0, 1, "", "", 0)


def drawn(board: Board, now_ms: int = NOW, height: int = 30, width: int = 160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(board.draw(now_ms, height))
    return console.export_text()


def board() -> Board:
    made = Board(Names([], None), NOW - 20_000)
    made.server("s1", "server-1", is_up=True)
    return made


def test_regions_in_transition_are_shown_oldest_first_and_leave_when_done() -> None:
    screen = board()
    screen.step(line("OPENING", region="t.2", at_ms=NOW - 3_000), Text("b"))
    screen.step(line("OFFLINE", region="t.1", at_ms=NOW - 9_000), Text("a"))
    text = drawn(screen)
    assert text.index("9.0 s") < text.index("3.0 s")
    assert "OFFLINE 1  OPENING 1" in text
    assert "server-1 2 moving" in text
    screen.step(line("", region="t.1"), Text("c"))
    assert screen.moving == 1


def test_a_region_that_shows_progress_in_one_state_keeps_its_age() -> None:
    screen = board()
    screen.step(line("OPENING", at_ms=NOW - 8_000), Text("a"))
    screen.step(line("OPENING", at_ms=NOW - 1_000), Text("b"))
    assert "8.0 s" in drawn(screen)


def test_the_age_of_a_region_that_fails_to_open_goes_on_over_its_tries() -> None:
    """B1: each try writes the transition again; a region that has not been open for a minute is not a young one."""
    screen = board()
    screen.step(line("OPENING", at_ms=NOW - 60_000), Text("a"))
    for attempt, ago_ms in ((1, 40_000), (2, 2_000)):
        screen.step(replace(line("OFFLINE", at_ms=NOW - ago_ms), attempt=attempt), Text("b"))
        screen.step(replace(line("OPENING", at_ms=NOW - ago_ms + 1_000), attempt=attempt), Text("c"))
    assert "60.0 s" in drawn(screen)


def test_a_narrow_terminal_shows_one_line_for_each_thing() -> None:
    """B1: nothing is folded, so the screen is as high as it was asked to be."""
    screen = board()
    for number in range(2, 20):
        screen.server(f"s{number}", f"server-{number}", is_up=True)
    for number in range(30):
        screen.step(line("OFFLINE", region=f"t.{number}"), Text(f"a step with a long explanation {number} " * 5))
    text = drawn(screen, height=24, width=80)
    assert len(text.splitlines()) <= 24
    assert "30 in transition" in text.splitlines()[0]


def test_rates_count_the_last_ten_seconds() -> None:
    screen = board()
    screen.step(line("OPENED", at_ms=NOW - 11_000), Text("a"))
    for _ in range(20):
        screen.step(line("OPENED", at_ms=NOW - 5_000), Text("b"))
    assert "2.0 steps/s   2.0 opened/s   21 steps" in drawn(screen)


def test_a_screen_that_is_too_small_says_what_it_leaves_out() -> None:
    screen = board()
    for number in range(50):
        screen.step(line("OFFLINE", region=f"t.{number}", at_ms=NOW - number), Text("x"))
    text = drawn(screen, height=24)
    assert "… and 42 more" in text
    assert len(text.splitlines()) <= 24


def test_masters_and_servers_come_and_go() -> None:
    screen = board()
    assert "active master: none" in drawn(screen)
    screen.active = "master-1"
    screen.server("s1", "server-1", is_up=False)
    screen.membership(MembershipChange(NOW, "server-down", "s1", "h:1"), "server-1 is gone")
    text = drawn(screen)
    assert "active master: master-1" in text
    assert "server-1 (gone)" in text
    assert "** server-1 is gone" in text


def test_the_header_has_verdict_store_servers_and_the_heaviest_problems() -> None:
    """B1: during an incident one screen shows everything that is wrong. Tried: if all reasons are shown, not only the
    heaviest, a small screen has no room for the table."""
    screen = board()
    nodes = [StoreFinding("store-1", "h:1", True, "leader"), StoreFinding("store-2", "h:2", False, trouble="silent")]
    findings = Findings(nodes, [MasterFinding("master-1", "h:3", True, "active")], [], None)
    reasons = [Reason(HealthVerdict.DEGRADED, f"problem {number}") for number in range(9)]
    screen.health(Health(HealthVerdict.DEGRADED, reasons), findings)
    screen.begin(line("OPENING", at_ms=NOW - 600_000))
    text = drawn(screen, height=24, width=80)
    assert "DEGRADED   1 of 2 store nodes, leader store-1   1 of 1 master" in text
    assert "problem 2" in text
    assert "and 6 problems more: rk health" in text
    assert "600.0 s" in text
    assert len(text.splitlines()) <= 24


def test_a_parked_region_is_counted_and_named_so() -> None:
    screen = board()
    screen.begin(replace(line("OFFLINE"), parked=True))
    text = drawn(screen)
    assert "1 in transition, 1 of them parked" in text
    assert "PARKED 1" in text


def test_a_filter_hides_regions_and_says_how_many() -> None:
    controls = Controls()
    screen = Board(Names([], None), NOW - 20_000, controls)
    screen.step(line("OPENING", region="t.1", server="server-1"), Text("a"))
    screen.step(line("OPENING", region="t.2", server="server-2"), Text("b"))
    controls.press("/server-2\r")
    text = drawn(screen)
    assert "t.2" in text
    assert "orders t.1" not in text
    assert "1 do not fit the filter" in text
    assert "2 in transition" in text, "the header counts all"


def test_a_paused_picture_does_not_change() -> None:
    """Tried: without the copies in `frozen` the later step is in it."""
    screen = board()
    screen.step(line("OPENING", region="t.1"), Text("a"))
    picture = screen.frozen()
    before = drawn(picture)
    screen.step(line("OPENING", region="t.2"), Text("later"))
    screen.step(line("", region="t.1"), Text("later"))
    screen.server("s2", "server-2", is_up=True)
    assert drawn(picture) == before
    assert drawn(screen) != before


def test_filters_by_table_server_and_state() -> None:
    """`rk watch --table --server --state`."""
    one = line("OPENED")
    assert Wanted().fits(one)
    assert Wanted("orders", "server-1", ("OPENED", "")).fits(one)
    assert not Wanted(table="other").fits(one)
    assert not Wanted(server="server-2").fits(one)
    assert not Wanted(states=("CLOSED",)).fits(one)
    assert Wanted(states=("",)).fits(line(""))


def test_regions_that_were_in_transition_before_the_watch_are_there_with_their_age() -> None:
    """B1: a screen that is opened late shows the stuck region first, not "nothing moves"."""
    screen = board()
    screen.begin(line("OPENING", region="t.9", at_ms=NOW - 600_000))
    screen.step(line("OFFLINE", region="t.1", at_ms=NOW - 9_000), Text("a"))
    text = drawn(screen)
    assert text.index("600.0 s") < text.index("9.0 s")
    assert "2 in transition" in text
    assert "1 steps since" in text
    screen.step(line("", region="t.9"), Text("b"))
    assert screen.moving == 1
