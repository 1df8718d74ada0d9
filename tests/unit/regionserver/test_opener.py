"""Kinds that openers declare."""

from __future__ import annotations

import pytest

from coord.errors import ConfigError
from regions.records.kinds import TABLETS_ALONE
from regions.records.model import RegionRecord
from regionserver.opener import Opening, RegionOpener, TabletsAloneOpener, kind_of


class Service(RegionOpener):
    """A service of one's own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, opening: Opening) -> None:
        """Do nothing."""

    def close(self, region: RegionRecord, replica: int) -> None:
        """Do nothing."""


class OwnCounters(Service):
    """The class declares a kind, as services do."""

    kind = "counters/2"

    def __init__(self) -> None:
        super().__init__(self.kind)

    def open(self, opening: Opening) -> None:
        """Do nothing."""


class OwnTablets(OwnCounters):
    """The class declares the kind of servers without a shared directory, in a later version."""

    kind = "tablets/7"

    def open(self, opening: Opening) -> None:
        """Do nothing."""


class DerivedTablets(TabletsAloneOpener):
    """A derived class would get key-value tablets as well."""


def test_an_opener_has_the_kind_that_it_declares() -> None:
    assert kind_of(OwnCounters()) == "counters/2"
    assert kind_of(TabletsAloneOpener()) == TABLETS_ALONE


@pytest.mark.parametrize("opener", [OwnTablets(), DerivedTablets()])
def test_the_kind_of_servers_that_take_tablets_alone_is_reserved(opener: RegionOpener) -> None:
    """Masters place key-value tablets on servers of this kind."""
    with pytest.raises(ConfigError, match="is reserved for key-value servers without a shared directory"):
        kind_of(opener)
