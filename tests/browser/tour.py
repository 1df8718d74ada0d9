"""Writes docs/tour.md and its pictures: from an empty directory to a drill, from the view of a user who has only the
wheel.

    python -m tests.browser.tour [--pure]

Builds the wheel, installs it into an empty environment, runs `rk up`, opens the live page in Debian's chromium, and
runs two drills. The page has the typed commands and their output; `--pure` builds without the compiler. Takes some
minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.browser.conftest import CHROMIUM, FLAGS, MISSING, QUIET
from tests.browser.test_page import VIEWS, Tab
from tests.e2e.clusters import free_base_port
from tests.support.helpers import eventually

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "tour.md"
PICTURES: Final = ROOT / "docs" / "pictures"
#: Longest time of a build, an installation or a drill.
DEADLINE_S: Final = 900.0
SIZE: Final = {"width": 900, "height": 560}
#: Lines of a command's output that are shown.
SHOWN_MAX: Final = 40
SETTLE_MS: Final = 1500
HEAD: Final = """# From an empty directory to a drill

After this page you have seen a cluster start, break and heal. `python -m tests.browser.tour` has typed every command
below, and has written this page and its pictures.

"""


class Tour:
    """The transcript, and the directory in which it is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = HEAD
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RK_")}
        self.environment["COLUMNS"] = "118"

    def note(self, text: str) -> None:
        """Add prose."""
        self.text += text + "\n\n"

    def show(self, typed: str, printed: str) -> None:
        """Add a command with its output, without what is different in each run."""
        lines = printed.replace(str(self.folder), "~/trial").rstrip().splitlines()
        if len(lines) > SHOWN_MAX:
            lines = [*lines[: SHOWN_MAX // 2], "…", *lines[-SHOWN_MAX // 2 :]]
        body = "\n".join(line.rstrip() for line in [f"$ {typed}", *lines])
        self.text += f"```\n{body}\n```\n\n"

    def run(self, typed: str, shown: bool = True, **more: str) -> str:
        """Run a command line in the directory. Raise for a status other than 0."""
        done = subprocess.run(
            typed, shell=True, cwd=self.folder, env={**self.environment, **more}, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{typed}: status {done.returncode}\n{done.stdout}{done.stderr}")
        if shown:
            self.show(typed, done.stdout)
        return done.stdout

    @contextmanager
    def background(self, typed: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command line beside others; stop it with Ctrl-C."""
        with (self.folder / "printed").open("w") as printed:
            process = subprocess.Popen(
                typed.split(), cwd=self.folder, env=self.environment, stdout=printed, stderr=printed, text=True
            )
            try:
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(DEADLINE_S)

    def picture(self, tab: Tab, name: str, caption: str) -> None:
        """Take a picture of the page, and show it."""
        tab.page.screenshot(path=PICTURES / f"{name}.jpg", type="jpeg", quality=55)
        self.text += f"![{caption}](pictures/{name}.jpg)\n\n"


def install(tour: Tour, pure: bool) -> None:
    """Build the wheel and install it into an empty environment."""
    tour.note("## Installation\n\nThe wheel is built from a clone of the repository, here in `~/clone`.")
    more = {"RK_PURE": "1"} if pure else {}
    tour.run(f"{sys.executable} -m pip wheel -q --no-deps -w . {ROOT}", shown=False, **more)
    (wheel,) = tour.folder.glob("*.whl")
    tour.show("pip wheel -q --no-deps -w . ~/clone && ls", wheel.name)
    tour.run(f"{sys.executable} -m venv env", shown=False)
    tour.run(f"env/bin/pip install -q {wheel.name}", shown=False)
    tour.show(f"python3 -m venv env && env/bin/pip install -q {wheel.name}", "")
    tour.run("env/bin/rk --version")


def views(tour: Tour, browser: Any, address: str, token: str) -> None:
    """Show each view of the page."""
    tour.note("## The live page\n\n`rk up` has printed its address; the browser asks for `rk certs token` once.")
    tab = Tab(browser, address, token, viewport=SIZE)
    for view in VIEWS:
        tab.show(view)
        tab.page.wait_for_timeout(SETTLE_MS)
        tour.picture(tab, view or "overview", f"The view {view or 'overview'}")
    tab.close()
    tab = Tab(browser, address, token, viewport=SIZE, color_scheme="dark")
    tab.show("audit")
    tab.page.wait_for_timeout(SETTLE_MS)
    tour.picture(tab, "audit-dark", "The view audit in a browser that prefers dark pages")
    tab.close()


def drill(tour: Tour, browser: Any, name: str, addresses: dict[str, str], token: str) -> None:
    """Show a drill: the map before the fault, during it, and after the recovery; then the report."""
    tour.note(f"## rk drill {name}")
    tabs = {role: Tab(browser, f"{address}#/regions", token, viewport=SIZE) for role, address in addresses.items()}
    tab = tabs["active"]
    tour.picture(tab, f"{name}-1", "Before")
    with (tour.folder / "drill").open("w") as printed:
        process = subprocess.Popen(
            ["env/bin/rk", "drill", name, "--seed", "1"], cwd=tour.folder, env=tour.environment, stdout=printed
        )
        missing = "!rk.isLive || rk.model.counts()[0] < rk.model.numbers.size || rk.figures.verdict !== 'healthy'"
        while process.poll() is None and not tab.read(missing):
            tab.page.wait_for_timeout(50)
        tab.page.wait_for_timeout(0 if name == "server-crash" else 2000)
        tour.picture(tab, f"{name}-2", "Struck" if name == "server-crash" else "The page of the master that was killed")
        if name != "server-crash":
            tour.picture(tabs["standby"], f"{name}-3", "The page of the other master, which has taken over")
        status = process.wait(DEADLINE_S)
    tab.page.wait_for_timeout(SETTLE_MS)
    tour.picture(tab, f"{name}-4", "Healed")
    tab.show("runs")
    tab.page.wait_for_timeout(2 * SETTLE_MS)
    link = tab.page.locator("main a").first
    link.click()
    tab.page.wait_for_timeout(2 * SETTLE_MS)
    tour.picture(tab, f"{name}-5", "The drill as a time line")
    for one in tabs.values():
        one.close()
    tour.show(f"env/bin/rk drill {name} --seed 1", (tour.folder / "drill").read_text())
    if status:
        raise SystemExit(f"the drill {name} ended with status {status}: {(tour.folder / 'drill').read_text()}")


def addresses_of(tour: Tour) -> dict[str, str]:
    """Return the address of each master's page by role."""
    import json

    status = json.loads(tour.run("env/bin/rk status --json", shown=False))
    return {one["role"]: one["page"] for one in status["masters"]}


def main() -> int:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.tour", description=__doc__)
    parser.add_argument("--pure", action="store_true", help="build without the compiler")
    given = parser.parse_args()
    if CHROMIUM is None:
        sys.stderr.write(MISSING + "\n")
        return 1
    from playwright.sync_api import sync_playwright  # an extra

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rk-tour-") as name, sync_playwright() as driver:
        tour = Tour(Path(name))
        install(tour, given.pure)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *QUIET])
        up = f"env/bin/rk up --base-port {free_base_port()}"
        with tour.background(up) as process:
            tour.note("## A cluster\n\nThe command stays in the foreground; the others come from a second terminal.")

            def is_up() -> bool:
                assert process.poll() is None, (tour.folder / "printed").read_text()
                return "Ctrl-C" in (tour.folder / "printed").read_text()

            eventually(is_up, DEADLINE_S, "the cluster is up")
            tour.show("env/bin/rk up", (tour.folder / "printed").read_text())
            tour.run("env/bin/rk status")
            token = tour.run("env/bin/rk certs token", shown=False).strip()
            tour.run("env/bin/rk fsck")
            views(tour, browser, addresses_of(tour)["active"], token)
            for one in ("server-crash", "master-failover"):
                drill(tour, browser, one, addresses_of(tour), token)
        browser.close()
        PAGE.write_text(re.sub(r"\n{3,}", "\n\n", tour.text).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
