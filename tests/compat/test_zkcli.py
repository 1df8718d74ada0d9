"""ZooKeeper's command line prints the same on our store as on Apache ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import jvm
from tests.compat.zkcli import KNOWN, differences

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(jvm.missing()), reason=jvm.missing())]


def test_a_scripted_session_reads_the_same(tmp_path: Path) -> None:
    """Every line of output of every command is the same, except for differences with a reason."""
    found = differences(tmp_path)
    unexplained = [f"> {command}\n{diff}" for command, diff in found.items() if command.partition(": ")[2] not in KNOWN]
    assert not unexplained, "\n".join(unexplained)
