"""Reports for programs: every field, always; and nothing is done unasked."""

from __future__ import annotations

import json

import msgspec
import pytest

from cli.common import output
from cli.common.errors import CliError
from regions.messages import Tables, TableSummary
from regions.records.model import Incarnation, TableIntent, TableRecord, TableState


@pytest.mark.parametrize("show", [output.print_json, output.print_json_line])
def test_a_report_has_the_fields_that_have_their_default(show: object, capsys: pytest.CaptureFixture[str]) -> None:
    """In znodes and between processes they are left out: a script would find no `state` of a RUNNING table."""
    found = Tables([TableSummary(TableRecord("t", "orders"), 1, 1, 1, 0, 0)])
    assert b"RUNNING" not in msgspec.json.encode(found)
    assert callable(show)
    show({"found": found, "one": (Incarnation("s", 1),)})
    told = json.loads(capsys.readouterr().out)
    assert told["one"] == [{"uuid": "s", "start_code": 1}]
    assert told["found"]["type"] == "Tables"
    table = told["found"]["tables"][0]["table"]
    assert set(table) == set(TableRecord.__struct_fields__)
    assert (table["state"], table["intent"]) == (TableState.RUNNING.value, TableIntent.ENABLED.value)
    assert msgspec.convert(table, TableRecord) == found.tables[0].table


def test_with_json_nobody_is_asked_and_nothing_is_done() -> None:
    """`rk table delete t --json` in a script is no consent."""
    with pytest.raises(CliError, match="nothing was deleted") as refused:
        output.confirm("delete table t?", "nothing was deleted", as_json=True)
    assert "--yes" in refused.value.hint
