"""With `--admin-hide-keys` no key of a region or row leaves the master by the page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock

from master.page.feed import Feed
from master.page.hiding import KeyHider
from master.page.views import REGIONS_PAGE, Views
from regions.records.model import RegionRecord, TableRecord
from regions.records.znodes import Layout
from tests.unit.master.page.fake_master import Browser, FakeMaster, FakeRequest, pass_time
from tests.unit.regions.model_cluster import ModelCluster

KEY = "customer-"


class Hidden:
    """The page of a cluster whose keys are customers' names."""

    def __init__(self, regions: int) -> None:
        self.clock = Clock()
        cluster = ModelCluster()
        self.master: Any = FakeMaster(self.clock, cluster)
        self.world = cluster.assigner.world
        self.world.put_table(TableRecord("t", "orders", regions=regions), 0)
        for number in range(regions):
            self.put(number, regions)
        hider = KeyHider(b"secret")
        self.feed = Feed(self.clock, self.master, lambda _feed: {"problems": [f"near '{KEY}1'"]}, hider)
        self.feed.start()
        self.views = Views(self.clock, self.master, Layout("/rk"), self.feed, hider)

    def put(self, number: int, last: int = 0) -> None:
        start = f"{KEY}{number:04}" if number else ""
        end = f"{KEY}{number + 1:04}" if number + 1 < last else ""
        record = RegionRecord("t", f"t.{number:04}", start_key=start, end_key=end)
        self.world.put_region(record, 0)

    def read(self, view: str, **given: str) -> Any:
        found: list[object] = []
        ensureDeferred(self.views.read(view, given)).addCallback(found.append)
        return found[0]


def test_the_stream_has_names() -> None:
    """The snapshot, a region that comes later, and the figures. Fails if `_send_delta` does not hide."""
    hidden = Hidden(3)
    request, browser = FakeRequest(), Browser()
    hidden.feed.attach(request, "")
    pass_time(hidden.clock, 1.5)
    hidden.put(7)
    pass_time(hidden.clock, 1.5)
    browser.read(request)
    assert sorted(browser.shown()) == ["t.0000-0", "t.0001-0", "t.0002-0", "t.0007-0"]
    assert KEY.encode() not in request.raw
    assert b"near '\xe2\x80\xa6'" in request.raw


def test_views_have_names_and_turn_pages() -> None:
    """A region shows the names of its range; the next page of a table begins at the region that the first one names."""
    hidden = Hidden(REGIONS_PAGE + 5)
    region = hidden.read("region", id="t.0002")
    hider = KeyHider(b"secret")
    assert region["record"]["start_key"] == hider.name(f"{KEY}0002")
    assert region["record"]["end_key"] == hider.name(f"{KEY}0003")
    first = hidden.read("table", name="orders")
    second = hidden.read("table", name="orders", **{"from": first["next"]})
    assert (first["next"], len(second["regions"])) == (f"t.{REGIONS_PAGE:04}", 5)
    assert KEY not in json.dumps([region, first, second])


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("split of t.1 at 'a b'", "split of t.1 at '…'"),
        ("""at "it's" now""", "at '…' now"),
        (r"at 'a\'b' now", "at '…' now"),
        ("the server's record is gone", "the server's record is gone"),
        ("two masters' words, servers' lists", "two masters' words, servers' lists"),
    ],
)
def test_texts_lose_what_they_quote(text: str, hidden: str) -> None:
    """As `repr` quotes it; an apostrophe is not a quote."""
    assert KeyHider(b"s").value([text]) == [hidden]


def test_a_name_is_stable_and_has_a_secret() -> None:
    """The end of the key space is not a secret."""
    assert KeyHider(b"a").name("k") == KeyHider(b"a").name("k") != KeyHider(b"b").name("k")
    assert KeyHider(b"a").name("") == ""
