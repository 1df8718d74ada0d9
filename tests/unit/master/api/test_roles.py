"""Which roles answer a call: the table covers every call and agrees with HB-14 (with FW-01's column)."""

from __future__ import annotations

import enum
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from coord.rpc.server import RpcError
from master.api.roles import WHO, Who
from master.service import MasterService
from master.settings import MasterSettings
from master.standby.watcher import StoreWatcher
from regions import messages as ms
from regions.messages.staleness import Bound
from regions.records.model import ActiveRecord
from tests.unit.master.active_fixture import LAYOUT, Bench
from tests.unit.master.standby.test_watcher import Heard

CALLS = typing.get_args(ms.MasterRequest)


def test_every_call_is_in_the_table() -> None:
    """HB-14: a new call must state which roles answer it."""
    assert set(WHO) == set(CALLS)


def test_a_call_has_a_staleness_bound_iff_standbys_may_answer_it() -> None:
    """FW-01: the field and the table agree; every role answers ListServers, within a bound if one is given."""
    with_bound = {call for call in CALLS if "bound" in call.__struct_fields__}
    assert with_bound == {call for call, who in WHO.items() if who is Who.BOUNDED} | {ms.ListServers}


def test_the_table_agrees_with_hb_14() -> None:
    """HB-14: Ping and heartbeats by all; List, Get, Create, Delete, Alter by the leader; servers and masters by all."""
    anybody = {call.__name__ for call, who in WHO.items() if who is Who.ANYBODY}
    assert anybody == {"Ping", "Heartbeat", "GetMasterStatus", "ListMasters", "ListServers", "ListContacts", "WhoAmI"}
    assert all(WHO[call] is Who.ACTIVE for call in (ms.CreateTable, ms.DeleteTable, ms.AlterTable))


# --- every call, asked of a master in every role ---

ADDRESS = "h2:9"
NOTHING = {int: 0, str: "", bool: True, float: 0.0}


def sample(call: type, **given: Any) -> Any:
    """Return a request of that kind with only the required fields."""
    values = dict(given)
    for field in msgspec.structs.fields(call):
        if field.required and field.name not in values:
            kind = typing.get_origin(field.type) or field.type
            if kind in (list, dict, tuple):
                values[field.name] = kind()
            elif isinstance(kind, type) and issubclass(kind, enum.Enum):
                values[field.name] = next(iter(kind))
            elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                values[field.name] = sample(kind)
            else:
                values[field.name] = NOTHING[kind]
    return call(**values)


class Asked:
    """A real master in one of the roles, over a store in memory."""

    def __init__(self, folder: Path, role: str) -> None:
        self.bench = Bench(folder)
        identity: Any = SimpleNamespace(uuid="m1", start_code=1, release=lambda: None)
        settings = MasterSettings(store="x:1", data_dir=folder, host="h", port=1, plan_engine="greedy")
        self.master = MasterService(MemoryReactorClock(), settings, identity)
        client: Any = self.bench.store
        self.master.client = client
        self.master.cluster_id = "c"
        election: Any = SimpleNamespace(active=None)
        self.master.election = election
        watcher = StoreWatcher(self.bench.clock, client, LAYOUT, self.bench.now_ms, Heard())
        self.master.watcher = watcher
        self.master.now_ms = self.bench.now_ms
        if role == "active":
            self.master.active_master = self.bench.active_master
            return
        active_master = self.bench.active_master
        assert active_master is not None
        active_master.end("another master is active")
        if role == "standby":
            election.active = ActiveRecord("m2", "h2", 9, 1, 5)
            watcher.start()
            watcher.follow()
            for _ in range(60):
                self.bench.go_on(0.05)

    def ask(self, request: Any) -> Any:
        """The answer, an RpcError, or None while the store is being asked."""
        results: list[Any] = []
        try:
            answer = self.master._dispatch(request)
        except RpcError as error:
            return error
        if isinstance(answer, msgspec.Struct):
            return answer
        ensureDeferred(answer).addBoth(results.append)
        for _ in range(5):
            self.bench.go_on()
        if not results:
            return None
        return results[0].value if isinstance(results[0], Failure) else results[0]


BY_ROLE = (ms.NOT_LEADER, ms.TOO_STALE)


def is_refused_for_its_role(answer: Any) -> bool:
    return isinstance(answer, RpcError) and answer.code in BY_ROLE


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_the_active_master_answers_everything(call: type, tmp_path: Path) -> None:
    """HB-14: it may reject the request itself, but never redirects the caller."""
    assert not is_refused_for_its_role(Asked(tmp_path, "active").ask(sample(call)))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_standby_answers_only_the_calls_of_its_rows(call: type, tmp_path: Path) -> None:
    """HB-14: it answers calls for every role and names the active master for the rest. FW-01: within a bound it answers
    reads, too."""
    standby = Asked(tmp_path, "standby")
    answer = standby.ask(sample(call))
    if WHO[call] is Who.ANYBODY:
        assert not is_refused_for_its_role(answer)
        return
    assert isinstance(answer, RpcError)
    assert (answer.code, answer.hint) == (ms.NOT_LEADER, ADDRESS)
    if WHO[call] is Who.BOUNDED:
        table = {"table": "orders"} if call in (ms.DescribeTable, ms.ExplainTable) else {}
        region = {"region_id": "t.0"} if "region_id" in call.__struct_fields__ else {}  # type: ignore[attr-defined]
        found = standby.ask(sample(call, bound=Bound(max_ms=5_000), **table, **region))
        assert (found.as_of.role, found.as_of.master) == ("standby", "h:1")
        assert found.as_of.stale_ms <= 5_000


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_deposed_master_names_no_active_master(call: type, tmp_path: Path) -> None:
    """HB-14, MF-13: it names no active master, least of all itself, and proves no age from its former tenure."""
    deposed = Asked(tmp_path, "deposed")
    answer = deposed.ask(sample(call))
    if WHO[call] is Who.ANYBODY:
        assert not is_refused_for_its_role(answer)
        return
    assert isinstance(answer, RpcError)
    assert (answer.code, answer.hint) == (ms.NOT_LEADER, "")
    if WHO[call] is Who.BOUNDED:
        refused = deposed.ask(sample(call, bound=Bound(max_ms=3_600_000)))
        assert refused.code == ms.TOO_STALE


def test_a_master_whose_lease_has_ended_does_not_answer_as_the_active_one(tmp_path: Path) -> None:
    """MF-13: after a freeze longer than its session it must not return old state before it has noticed the loss."""
    active = Asked(tmp_path, "active")
    active.bench.store.left_s = 0.0
    assert active.ask(ms.ListTables()).code == ms.BUSY


def test_the_active_master_proves_a_tight_bound_by_a_sync(tmp_path: Path) -> None:
    """FW-01: its session was alive when the sync was sent to the store, so no other master was active then."""
    active = Asked(tmp_path, "active")
    active.bench.store.left_s = 1.0
    assert active.ask(ms.ListTables()).as_of.stale_ms == 2_000
    assert active.bench.store.asked["sync"] == 0
    assert active.ask(ms.ListTables(Bound(max_ms=0))).as_of.stale_ms == 0
    assert active.bench.store.asked["sync"] == 1
    refused = active.ask(ms.ListTables(Bound(min_zxid=1 << 40)))
    assert refused.code == ms.TOO_STALE
