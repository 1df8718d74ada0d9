"""The generated pages of the documentation, and the functions that generate them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from regions.transitions.diagrams import transitions_page
from tests.support.docs.dashboard import dashboard
from tests.support.docs.diagrams import diagrams_page
from tests.support.docs.exit_codes import exit_codes_page
from tests.support.docs.man import man_page
from tests.support.docs.metrics import metrics_page
from tests.support.docs.reference import commands_page, configuration_page, limits_page, znodes_page

#: Page, below the repository, and the function that returns its text.
PAGES: Final[dict[str, Callable[[], str]]] = {
    "docs/transitions.md": transitions_page,
    "docs/exit-codes.md": exit_codes_page,
    "docs/reference/znodes.md": znodes_page,
    "docs/reference/limits.md": limits_page,
    "docs/reference/configuration.md": configuration_page,
    "docs/reference/commands.md": commands_page,
    "docs/reference/diagrams.md": diagrams_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/man/rk.1": man_page,
    "monitoring/dashboard.json": dashboard,
}
