"""The live page in a real browser: exact, quiet on its console, unharmed by hostile names, usable by keyboard and when
narrow. One cluster for all tests of a real one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from regions.messages.heartbeat import TabletRole
from regions.messages.tablets import TabletHealth, TabletList, TabletMember, TabletStatus
from regions.records.intents import TabletMove
from regions.records.members import MemberRole
from regions.records.model import TabletState
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.support.helpers import eventually

VIEWS = ("", "regions", "transitions", "servers", "store", "tables", "tablets", "plans", "runs", "audit")
DEADLINE_MS = 30_000
#: What a page with the whole cluster has; `rk` is the page's own state.
LOADED = "window.rk && rk.isLive && rk.model.isComplete && rk.figures !== null"


@contextlib.contextmanager
def synthetic(*options: str) -> Iterator[tuple[str, int]]:
    """Yield the address of a made-up master's page, and the master's process id."""
    words = [sys.executable, "-m", "tests.browser.synthetic", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[LocalUp]:
    """Yield a small cluster with one table of 40 shared regions. `browser` first: without one nothing starts."""
    assert browser is not None
    shape = ("--store-nodes", "1", "--masters", "2", "--servers", "3", "--replicas", "1", "--regions", "40")
    base = ("--base-port", str(free_base_port()), "--plan-engine", "greedy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RK_MASTER_RUN_ATTEMPTS_MAX", "2")  # soon parked
        with local_up(tmp_path_factory.mktemp("page") / "c", *shape, *base) as up:
            up.event("up")
            yield up


class Tab:
    """One page; everything that the browser complains about is kept."""

    def __init__(self, browser: Any, address: str, token: str = "", **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: set[str] = set()
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on(
            "console", lambda one: self.complaints.append(one.text) if one.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.on("request", lambda one: self.requests.add(one.url.split("/")[2]))
        self.address = address
        base, hash_, view = address.partition("#")
        self.page.goto(f"{base}?token={token}{hash_}{view}" if token else address)
        self.wait(LOADED)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        # Playwright's own wait evaluates text in the page, which the page's policy forbids.
        deadline_s = time.monotonic() + DEADLINE_MS / 1000
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline_s, f"{condition} in {self.page.inner_text('body')}"
            self.page.wait_for_timeout(20)

    def show(self, view: str) -> None:
        """Open a view by its link."""
        self.page.evaluate(f"location.hash = '#/{view}'")
        self.page.wait_for_selector("main h1", timeout=DEADLINE_MS)

    def read(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def close(self) -> None:
        self.context.close()


@contextlib.contextmanager
def tab(browser: Any, address: str, **options: Any) -> Iterator[Tab]:
    """Yield a page, and fail if the browser had complaints or asked another host."""
    found = Tab(browser, address, **options)
    yield found
    found.close()
    assert found.complaints == []
    assert found.requests == {address.split("/")[2]}


def token_of(up: LocalUp) -> str:
    """Return the token with which this user opens pages of a secured cluster."""
    credentials = up.credentials()
    return "" if credentials is None else credentials.token()


def pages_of(up: LocalUp) -> dict[str, str]:
    """Return the address of each master's page by role, as `rk status` prints it."""
    status = json.loads(run_rk("status", "--json", "--data-dir", str(up.data_dir)).stdout)
    return {one["role"]: one["page"] for one in status["masters"]}


def test_the_page_equals_rk_status_at_rest(browser: Any, cluster: LocalUp) -> None:
    """On the active master and on the standby, which says its age. Fails if `Model.part` leaves a row out."""
    status = json.loads(run_rk("status", "--json", "--data-dir", str(cluster.data_dir)).stdout)
    for role, address in pages_of(cluster).items():
        with tab(browser, address, token=token_of(cluster)) as one:
            assert "token" not in one.page.url
            figures = one.read("rk.figures")
            assert figures["role"] == role
            assert {server["address"]: server.get("open", 0) for server in figures["servers"]} == {
                server["address"]: server["open"] for server in status["servers"]
            }
            assert figures["counts"]["rit"] == status["rit"] == 0
            # Masters ask each other. Fails if a secured master refuses the question.
            one.wait("rk.figures.servers.every((server) => Object.keys(server.elsewhere || {}).length === 1)")
            (table,) = status["tables"]
            assert [(each["name"], each["regions"], each["open"]) for each in figures["tables"]] == [
                (table["table"]["name"], table["regions"], table["open"])
            ]
            assert one.read("rk.model.counts()[0]") == table["regions"] == 40
            assert (" old" in one.page.inner_text("#told")) == (role == "standby")
            if role == "active":
                assert one.page.inner_text("#verdict").strip() == "HEALTHY"


def test_every_view_is_quiet_accessible_and_fits_a_phone(browser: Any, cluster: LocalUp) -> None:
    """No complaint, no foreign host, no violation found by axe, nothing wider than the screen; dark and light.

    Fails if a scrolling table has no `tabindex`, and if `main` is wider than the screen.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    address = pages_of(cluster)["active"]
    for theme in ("light", "dark"):
        narrow = {
            "viewport": {"width": 390, "height": 800},
            "color_scheme": theme,
            "bypass_csp": True,
            "token": token_of(cluster),
        }
        with tab(browser, address, **narrow) as one:
            for view in VIEWS:
                one.show(view)
                one.wait("!document.querySelector('main').innerText.includes('undefined')")
                assert one.read("document.documentElement.scrollWidth <= innerWidth"), (view, theme)
                found = axe.run(one.page).response["violations"]
                assert not [(each["id"], each["nodes"][0]["html"]) for each in found], (view, theme)


def test_the_map_is_used_by_keyboard(browser: Any, cluster: LocalUp) -> None:
    """Tab reaches the map, arrows move on it, Enter opens the region with its history. Fails if `RegionMap.move`
    stays."""
    with tab(browser, pages_of(cluster)["active"] + "#/regions", token=token_of(cluster)) as one:
        one.page.locator("canvas").first.focus()
        for press in ("Home", "Shift+ArrowRight", "Shift+ArrowRight"):
            one.page.keyboard.press(press)
        assert one.page.inner_text(".sum").startswith("3 regions, packages from -∞ to packages ")
        for press in ("Escape", "ArrowRight", "Enter"):
            one.page.keyboard.press(press)
        one.wait("location.hash.startsWith('#/region/')")
        fourth = one.read("rk.model.key[rk.model.ordered()[0].rows[3]]")
        assert one.read("location.hash").endswith(f"/{fourth.rpartition('-')[0]}")
        one.page.wait_for_selector("text=OPENING → OPENED", timeout=DEADLINE_MS)
        assert "OPEN" in one.page.inner_text("main")
        one.page.get_by_role("button", name="by time").click()
        assert one.page.text_content(".ends span:last-child") == "now"


def test_rounds_and_checks_are_shown(browser: Any, cluster: LocalUp) -> None:
    """A standby's page says that rounds and checks are the active master's.

    Fails if `_plans` sends no rounds, `_alarms` no checks, or `rk fsck` keeps no record of what it has found.
    """
    for _ in range(2):  # the record is not a finding of the next check
        assert "nothing is wrong" in run_rk("fsck", "--data-dir", str(cluster.data_dir)).stdout
    for role, address in pages_of(cluster).items():
        with tab(browser, address + "#/plans", token=token_of(cluster)) as one:
            said = "The balancer is on" if role == "active" else "Only the active master balances"
            one.wait(f"document.querySelector('main').innerText.includes('{said}')")
            one.show("audit")
            one.wait("document.querySelector('main').innerText.includes('the key space of the tables')")
            one.wait("document.querySelector('main').innerText.includes('Nothing was wrong')")


def test_a_parked_region_is_shown_on_every_view_until_it_is_retried(
    browser: Any, cluster: LocalUp, tmp_path: Path
) -> None:
    """Each view has the region's error and age, in a page opened before and in one opened after. A retry clears both.

    Fails if `row_of` returns the state of a parked transition in place of PARKED.
    """
    [files] = (cluster.data_dir / "shared" / "regions").glob("*/*.0007")
    region = files.name
    where, address = ("--data-dir", str(cluster.data_dir)), pages_of(cluster)["active"]
    text, age = "document.querySelector('main').innerText", r"/PARKED[\s\S]*\d+\.\d s/"
    said = f"{text}.includes('{region}') && {text}.includes('had this region open')"
    with tab(browser, address + "#/transitions", token=token_of(cluster)) as early:
        key = early.read(f"rk.model.start[rk.model.numbers.get('{region}-0')]")
        run_rk("region", "unassign", f"packages:{key}", *where)
        shutil.move(files, tmp_path / "kept")
        assert run_rk("region", "assign", f"packages:{key}", *where).returncode == 1
        early.wait(said)
        with tab(browser, address + "#/transitions", token=token_of(cluster)) as late:
            for one in (early, late):
                one.wait(f"{said} && {age}.test({text})")
                one.wait("rk.figures.counts.parked === 1 && rk.model.counts()[8] === 1")
                assert one.page.inner_text("#verdict").strip() == "UNAVAILABLE"
                one.show("")
                one.wait(f"{text}.includes('1 region is parked')")
                one.show(f"region/{region}")
                one.wait(f"{text}.includes('PARKED') && {text}.includes('rk region retry')")
            shutil.move(tmp_path / "kept", files)
            assert run_rk("region", "retry", f"packages:{key}", *where).returncode == 0
            for one in (early, late):
                one.wait("rk.figures.counts.parked === 0 && rk.model.counts()[0] === 40")
                one.wait("document.querySelector('#verdict').innerText.trim() === 'HEALTHY'")


def test_a_dead_server_and_a_dead_master_leave_no_stale_number(browser: Any, cluster: LocalUp) -> None:
    """Regions of a killed server are open again. Then the standby's page becomes the active one's."""
    pages = pages_of(cluster)
    local = json.loads((cluster.data_dir / "cluster.json").read_text())
    token = token_of(cluster)
    with (
        tab(browser, pages["active"] + "#/regions", token=token) as active,
        tab(browser, pages["standby"] + "#/regions", token=token) as standby,
    ):
        for each in (active, standby):
            each.read("(rk.before = rk.figures.second, 0)")
        victim = local["servers"][0]
        os.kill(victim["pid"], signal.SIGKILL)
        for each in (active, standby):
            # Longer than the server's session: its regions have been opened anew, often before the next change is sent.
            each.wait("rk.figures.second > rk.before + 6")
            each.wait("rk.model.counts()[0] === 40 && rk.figures.counts.rit === 0 && rk.figures.counts.open === 40")
        master = next(one for one in local["masters"] if pages["active"].split("/")[2] == one["admin"])
        os.kill(master["pid"], signal.SIGKILL)
        standby.wait("rk.figures.role === 'active' && rk.model.isComplete && rk.model.counts()[0] === 40")
        assert "active master" in standby.page.inner_text("#told")
        active.page.close()  # it connects again each second, and the browser reports that the connection was refused
        active.complaints.clear()
    eventually(lambda: pages_of(cluster)["active"], 30, "a master is active")


def test_many_regions_and_moves(browser: Any) -> None:
    """100,000 cells; the picture follows 500 moves a second."""
    with synthetic("--regions", "100000") as (address, _), tab(browser, address + "#/regions") as one:
        assert one.read("rk.model.numbers.size") == 100_000
        one.wait("document.querySelector('.sum').textContent.includes('100,000 regions')")
        one.read("(rk.seen = rk.model.counts()[4])")
        one.wait("rk.model.counts()[4] > 0 && rk.figures.counts.rit > 0")


def test_transitions_are_listed_by_pages(browser: Any) -> None:
    """All are counted, and the next page follows."""
    with synthetic("--regions", "1000") as (address, _), tab(browser, address + "#/transitions") as one:
        one.wait("document.querySelector('main .sum').innerText.includes('shown are 1 to 50')")
        one.page.get_by_role("button", name="next →", exact=True).click()
        one.wait("document.querySelector('main .sum').innerText.includes('shown are 51 to 100')")
        one.page.get_by_role("button", name="region", exact=True).first.click()
        one.wait("document.querySelector('main .sum').innerText.includes('shown are 1 to 50')")
        assert one.read("document.querySelector('th[aria-sort]').innerText") == "region"


def test_a_late_reply_does_not_turn_the_page_back(browser: Any) -> None:
    """Fails if `follow` shows a late reply to an earlier question."""
    shown, held = "document.querySelector('main .sum').innerText.includes('shown are {}')", []

    def hold_the_first(route: Any) -> None:
        if held or "first=0" not in route.request.url:
            route.continue_()
        else:
            held.append(route)

    def is_read(reply: Any) -> bool:
        return "/ui/data/transitions" in reply.url

    with synthetic("--regions", "1000") as (address, _), tab(browser, address + "#/transitions") as one:
        one.wait(shown.format("1 to 50"))
        one.page.route("**/ui/data/transitions*", hold_the_first)
        with one.page.expect_request(is_read):
            pass
        one.page.get_by_role("button", name="next →", exact=True).click()
        one.wait(shown.format("51 to 100"))
        with one.page.expect_response(lambda reply: "first=0" in reply.url):
            held[0].continue_()
        for _ in range(2):
            with one.page.expect_response(is_read) as next_one:
                pass
        assert "first=50" in next_one.value.url


def test_what_is_unfolded_stays_unfolded(browser: Any) -> None:
    """The view is drawn again when another round is shown. Fails if `replace` closes the unfolded parts."""
    with synthetic("--regions", "40") as (address, _), tab(browser, address + "#/plans") as one:
        one.wait("document.querySelector('main details') !== null")
        one.page.locator("main summary").first.click()
        one.read("(rk.cell = document.querySelector('main details'), 0)")
        one.read("(rk.cell.parentNode.append(document.createElement('i')), 0)")
        one.wait("document.querySelector('main details') !== rk.cell")
        assert one.read("document.querySelector('main details').open")


def test_tablets_fit_a_window_of_900_pixels(browser: Any) -> None:
    """Each column is shown: one member moves, and one is missing. Fails without the style's rule for such windows."""
    members = [
        TabletMember(one, f"s{one}", True, MemberRole.VOTER, raft_role=TabletRole.FOLLOWER, behind=1234 * one)
        for one in range(3)
    ]
    moves = (TabletMove("s0", "s3"),)
    words = (TabletHealth.UNDER_REPLICATED, "2 of 3 voters are healthy", 754_000, True, TabletState.RUNNING, 3)
    shown = [
        TabletStatus(f"ecd6e48e.{at:04x}", "t0", "packages", *words, members, 0, 12, start_key=f"lib{at}", moves=moves)
        for at in range(20)
    ]
    reply = msgspec.json.encode(TabletList(shown)).decode()
    size = {"width": 900, "height": 700}
    with synthetic("--regions", "40") as (address, _), tab(browser, address, viewport=size) as one:
        one.page.route("**/ui/data/tablets*", lambda route: route.fulfill(body=reply, content_type="application/json"))
        one.show("tablets")
        one.wait("document.querySelectorAll('main tbody tr').length === 20")
        found = one.read("[...document.querySelectorAll('main th')].map((each) => each.innerText)")
        assert found == ["tablet", "table", "from", "health", "term", "members"]
        text = one.page.inner_text("main tbody tr:first-child")
        assert [
            words for words in ("for ≥ 12 min 34 s", "2 of 3 voters", "1 move under way") if words not in text
        ] == []
        assert one.read("document.querySelector('main .scroll').scrollWidth") <= one.read(
            "document.querySelector('main .scroll').clientWidth"
        )


def test_hostile_names_are_text(browser: Any) -> None:
    """Tables, keys and problems with markup and directions are shown, and do nothing. Fails if `el` takes markup."""
    with synthetic("--regions", "40", "--hostile") as (address, _), tab(browser, address) as one:
        for view in VIEWS[:6]:
            one.show(view)
        one.show("")
        assert "<img src=x" in one.page.inner_text("main")
        one.show("tables")
        one.wait("document.querySelector('main').innerText.includes('<img src=x')")
        one.show("plans")
        one.wait("document.querySelector('main').textContent.includes('<img src=x')")
        one.show("audit")
        one.wait("document.querySelector('main').innerText.includes('</script>')")
        one.wait("document.querySelector('main').innerText.includes('rk fsck --fix would')")
        assert "\u202e" not in one.page.inner_text("body")
        assert one.read("window.hurt === undefined && document.querySelectorAll('main img').length === 0")


def test_hidden_keys_reach_no_browser(browser: Any) -> None:
    """The map and a table show names. Fails if `Views.read` does not hide."""
    with synthetic("--regions", "40", "--hide-keys") as (address, _), tab(browser, address + "#/regions") as one:
        assert one.read("rk.model.start.slice(0, 20).filter((key) => /^key-[0-9a-f]{10}$/.test(key)).length") == 19
        one.wait("document.querySelector('#told').innerText.includes('keys are hidden')")
        one.show("tables/orders")
        one.wait("document.querySelector('main').innerText.includes('key-')")
        assert "key-0000" not in one.page.content()


def screenshots(folder: Path) -> None:
    """Write one small picture of each view of a made-up cluster: `python -m tests.browser.test_page FOLDER`."""
    from playwright.sync_api import sync_playwright  # an extra

    from tests.browser.conftest import CHROMIUM, FLAGS

    with sync_playwright() as driver, synthetic("--regions", "2000") as (address, _):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for theme in ("light", "dark"):
            one = Tab(browser, address, viewport={"width": 1000, "height": 620}, color_scheme=theme)
            for view in VIEWS:
                one.show(view)
                one.page.wait_for_timeout(1500)
                one.page.screenshot(path=folder / f"{view or 'overview'}-{theme}.png")
        browser.close()


if __name__ == "__main__":
    screenshots(Path(sys.argv[1]))
