"""Three servers with one tablet, for the tests of the turn."""

from __future__ import annotations

import pytest

from tests.support.tablet_hosts import Hosts


@pytest.fixture
def hosts() -> Hosts:
    """Return three servers with one tablet."""
    return Hosts()
