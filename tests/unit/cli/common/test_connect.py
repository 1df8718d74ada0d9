"""cli.common.connect and asking: commands end soon, whatever is registered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.common.asking import servers
from cli.common.asking.refusals import refusal
from cli.common.asking.servers import ask_servers
from cli.common.connect import Cluster
from cli.common.errors import UnreachableError
from coord.rpc.wire import Code, RpcError
from master.client import NoLeader
from regions import messages as ms
from regions.records.model import ServerRecord


def test_no_further_server_is_asked_after_many_that_do_not_answer() -> None:
    """A server that rejects the request has answered. Servers that are not asked count as silent."""
    asked: list[str] = []

    def ask(server: ServerRecord) -> str:
        asked.append(server.uuid)
        if server.uuid.startswith("ghost"):
            raise RpcError(Code.TIMEOUT, "silence")
        if server.uuid.startswith("other"):
            raise RpcError("wrong_server", "another start")
        return "here"

    names = ["real", *(f"other{n}" for n in range(200)), *(f"ghost{n}" for n in range(500)), "late"]
    found = ask_servers([ServerRecord(name, "127.0.0.1", 1, 1) for name in names], ask)
    assert list(found) == names
    assert found["real"] == "here"
    assert found["late"] is None
    assert 201 + servers._SILENT_MAX <= len(asked) <= 201 + servers._SILENT_MAX + servers._ASKED_AT_ONCE


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        (ms.CreateTable("orders", wait_ms=60_000), "rk why orders"),
        (ms.MoveRegion("t1.0003", wait_ms=30_000), "rk why t1.0003"),
        (ms.DrainServer("b-7", wait_ms=30_000), "rk status"),
    ],
)
def test_a_command_that_stops_waiting_says_that_the_work_goes_on(
    request_: msgspec.Struct, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """After --wait, without a master in time, and by Ctrl-C. Tried: without _where_to_look in ask_master the latter two
    end without a word of it."""
    error = refusal(RpcError(ms.TIMED_OUT, "table orders: 3 of 40 open; the operation continues"), request_)
    assert error.hint.startswith("Only the waiting has ended: the masters go on.")
    assert f"`{command}` shows what is missing" in error.hint

    def ask(failure: BaseException) -> None:
        def fail(*_: object) -> Any:
            raise failure

        nobody: Any = SimpleNamespace()
        cluster: Any = Cluster(nobody, "127.0.0.1:1", "/rk")
        cluster._masters = SimpleNamespace(ask=fail, story=str)
        cluster.ask_master(request_, ms.Accepted)

    with pytest.raises(UnreachableError) as found:
        ask(NoLeader("none"))
    assert f"`{command}` shows" in found.value.hint
    with pytest.raises(KeyboardInterrupt):
        ask(KeyboardInterrupt())
    assert f"`{command}` shows" in capsys.readouterr().err
