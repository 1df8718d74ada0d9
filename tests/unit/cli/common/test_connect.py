"""cli.common.connect: commands end soon, whatever is registered."""

from __future__ import annotations

from cli.common import connect
from cli.common.connect import ask_servers
from coord.rpc.wire import Code, RpcError
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
    assert 201 + connect._SILENT_MAX <= len(asked) <= 201 + connect._SILENT_MAX + connect._ASKED_AT_ONCE
