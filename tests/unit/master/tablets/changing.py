"""An active master that changes members, and scripted servers that carry the changes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from regions.records.znodes import decode_table, encode
from tests.support.tablet_changes import ChangingServers
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets import fixture
from tests.unit.master.tablets.fixture import TabletBench


class ChangingBench(TabletBench):
    """A master that changes members, and servers that carry the changes out."""

    servers: ChangingServers

    def turn(self, count: int = 60, seconds: float = 0.0) -> None:
        for _ in range(count):
            super().turn(1, seconds)
            self.servers.copy()

    def members(self) -> list[list[str]]:
        """Return the servers of each tablet's members, by the store's records."""
        return [sorted(str(one.uuid) for one in region.members) for region in self.regions()]

    def table_is(self, **fields: Any) -> None:
        """Rewrite the table's record, as a DDL request does."""
        path = LAYOUT.table(self.table_id())
        record = decode_table(self.store.nodes[path][0])
        self.store.change(path, encode(msgspec.structs.replace(record, **fields)))
        data, version, _ = self.store.nodes[path]
        self.active_master.keeper.keeper.table_seen(decode_table(data), version)


def changing_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangingBench:
    """Return five servers and a table of four tablets with three members each."""
    monkeypatch.setattr(fixture, "ScriptedServers", ChangingServers)
    made = ChangingBench(tmp_path, 5)
    made.create(regions=4)
    made.turn()
    assert made.is_running()
    return made
