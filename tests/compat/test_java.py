"""The official Java client and Curator's recipes on three servers: one run of our program, one test for each group."""

from __future__ import annotations

import sys

import pytest
from _pytest.capture import CaptureManager

from tests.compat import jvm
from tests.compat.ensembles import OURS, ensemble
from tests.compat.java_suite import PENDING, Case, run_java

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(jvm.missing()), reason=jvm.missing())]

GROUPS = (
    "client",
    "multi",
    "watch",
    "acl",
    "session",
    "framework",
    "lock",
    "leader",
    "cache",
    "node",
    "counter",
    "queue",
    "server",
    "config",
    "sasl",
    "reaping",
)


@pytest.fixture(scope="module")
def against(request: pytest.FixtureRequest) -> str:
    """Return the kind of servers for the run."""
    return str(request.config.getoption("--against"))


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest, against: str, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Run all cases. Their lines appear on the terminal as they are printed."""
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    folder = tmp_path_factory.mktemp("java")

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    with ensemble(against, folder / "servers") as servers:
        return run_java(servers, [], folder / "java.log", show)


@pytest.mark.parametrize("group", GROUPS)
def test_group(cases: list[Case], against: str, group: str) -> None:
    """Every case passes, except those that are pending on our store."""
    mine = [case for case in cases if case.name.startswith(f"{group}.")]
    assert mine, f"no case of {group} came to an end"
    failed = [case for case in mine if not case.has_passed]
    pending = PENDING if against == OURS else {}
    unexpected = [case for case in failed if case.name not in pending]
    assert not unexpected, "\n".join(line for case in unexpected for line in case.lines)
    if failed:
        pytest.xfail("; ".join(sorted({pending[case.name] for case in failed})))


def test_nothing_else_ran(cases: list[Case]) -> None:
    """Each case belongs to a group that is tested above, and PENDING names only existing cases."""
    names = {case.name for case in cases}
    assert {name.partition(".")[0] for name in names} == set(GROUPS)
    assert set(PENDING) <= names
