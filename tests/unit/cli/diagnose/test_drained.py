"""How far a drained server is, in one word: `rk server list`, `rk status`, `rk health`, and `rk why`, which asks it."""

from __future__ import annotations

import pytest

from cli.common import output
from cli.common.names import Names
from cli.diagnose.health import _with_load
from cli.diagnose.status import Status, _server_line, show
from cli.server import _standing
from regions.diagnose.health import ServerFinding
from regions.messages import ServerLoad
from regions.records.model import BarRecord, ServerRecord

SERVER = ServerRecord("s1", "h", 1, 7, tablets=True)


@pytest.mark.parametrize(
    ("load", "word"),
    [
        (ServerLoad(SERVER, 3, 0, 0, 0), "up"),
        (ServerLoad(SERVER, 3, 0, 0, 0, draining=True), "draining"),
        (ServerLoad(SERVER, 0, 0, 0, 1, draining=True), "draining"),
        (ServerLoad(SERVER, 0, 0, 1, 0, draining=True, tablets=4), "draining"),
        (ServerLoad(SERVER, 4, 0, 0, 0, draining=True, tablets=4, tablets_open=4), "drained of shared regions"),
        (ServerLoad(SERVER, 0, 0, 0, 0, draining=True), "drained"),
        (ServerLoad(SERVER, 0, 0, 0, 0, draining=True, bar=BarRecord("s1", 7)), "fenced"),
    ],
)
def test_every_report_has_the_same_word(load: ServerLoad, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tried: "draining" for every drained server in `_server_line` or in `_with_load`; `drained` without `incoming`."""
    assert _standing(load).split(" until")[0] == word
    line = _server_line(load, Names([], None))
    assert line.state == word
    show(Status([], servers=[line]), Names([], None), output.console())
    assert word in capsys.readouterr().out
    found = _with_load(ServerFinding("s1", "h:1", True), load)
    assert found.state == ("" if word == "up" else word)
