"""Daemons for the attacks are forked, as those of the end-to-end tests are."""

from __future__ import annotations

from tests.support import forked

forked.allow()
