"""Reports as files in a real browser: nothing is wider than a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from regions.plan import BlockRow, LastRow, Params, RegionRow, ServerRow, Snapshot
from regions.plan.artifact.files import write_snapshot


def test_a_plans_report_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    """Bars, locality and the grid of ten racks scroll within their frames, and letters stay readable.

    Fails without the frame of the grid, with a legend of 420 pixels, and without `min-width` of the bars.
    """
    pytest.importorskip("pyarrow")
    regions = [RegionRow(f"r{n:02d}", "orders", 100 + n, start_key=f"k{n:02d}" if n else "") for n in range(40)]
    servers = [ServerRow(f"server-{n}", f"host-{n}", f"rack-{n}") for n in range(10)]
    last = [LastRow(one.region_id, 0, "server-0") for one in regions]
    write_snapshot(tmp_path / "in", Snapshot.of(regions, servers, [BlockRow("r00", "host-2", 70)], last), Params())
    made = str(tmp_path / "plan")
    report = tmp_path / "plan.html"
    assert run(["plan", "create", "--input", str(tmp_path / "in"), "--output", made, "--engine", "greedy"]) == 0
    assert run(["plan", "show", made, "--html", str(report)]) == 0
    context = browser.new_context(viewport={"width": 390, "height": 800})
    try:
        shown = context.new_page()
        shown.goto(report.as_uri())
        assert shown.locator("svg[aria-label='moves from rack to rack']").count() == 1
        assert shown.evaluate("document.documentElement.scrollWidth") == 390
        heights = "[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)"
        assert min(shown.evaluate(heights)) > 9
    finally:
        context.close()
