"""The compatibility tests run JVMs for minutes, so they run only when named (`make test-compat`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.ensembles import KINDS, OURS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--against zookeeper`, which runs the Java program on Apache ZooKeeper for comparison."""
    parser.addoption("--against", choices=KINDS, default=OURS, help="servers for the Java program")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out of `make test`."""
    here = Path(__file__).parent
    asked = any(Path(argument.partition("::")[0]).resolve().is_relative_to(here) for argument in config.args)
    return None if asked else True
