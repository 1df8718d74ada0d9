"""Options of the test run."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from cli.common.options import PLACES, SETTINGS, variable_of

# The tests must use neither the user's configuration file nor the cluster that the user's variables name.
os.environ["RK_CONFIG_FILE"] = ""
for _option in (*PLACES, "root", "cluster-id", "context", "json", *(name for name, _metavar, _help in SETTINGS)):
    os.environ.pop(variable_of(_option), None)
# A busy machine may pause a test for any time, so tests do not judge by the clock.
settings.register_profile("regionkeeper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("regionkeeper")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`: write the present output into the transcripts instead of comparing."""
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected output of transcripts")
