"""Puts the live page of one master together."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

from master.page.contacts import OtherMasters
from master.page.feed import Feed
from master.page.figures import FiguresMaker, FiguresSource
from master.page.hiding import KeyHider
from master.page.site import PageSite
from master.page.store_nodes import StoreNodes
from master.page.views import Views, ViewSource
from master.settings import MasterSettings
from regions.records.znodes import Layout


class PageMaster(ViewSource, FiguresSource, Protocol):
    """The parts of the master that the whole page reads."""


class LivePage:
    """The feed and the site of one master."""

    def __init__(self, reactor: Any, master: PageMaster, settings: MasterSettings) -> None:
        addresses = settings.store.partition("/")[0].split(",")
        nodes = StoreNodes(reactor, addresses, settings.access, master.now_ms)
        others = OtherMasters(reactor, master)
        hider = KeyHider(secrets.token_bytes(16)) if settings.admin_hide_keys else None
        maker = FiguresMaker(master, nodes.look, others.look)
        self.feed = Feed(reactor, master, lambda feed: maker.make(feed.world(), feed.curves), hider, nodes.greatest)
        self.site = PageSite(self.feed, Views(reactor, master, Layout(settings.root), self.feed, hider))
