"""The client of tablets against servers on real sockets: resets, frozen leaders, loops, restarts, deadlines."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from kazoo.exceptions import ConnectionLoss
from twisted.internet.task import deferLater

from coord.rpc.wire import Code, RpcError
from regions.records import partitioning
from regions.records import znodes as layout
from regions.records.members import Member, Storage
from regions.records.model import (
    ClusterRecord,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TabletState,
)
from regionserver.client import (
    Attempt,
    Change,
    NoSuchTable,
    OutcomeUnknown,
    RecordDamaged,
    Refused,
    RegionClient,
    RegionLocator,
    Unavailable,
)
from regionserver.client.tablets import context
from regionserver.kv.messages import DAMAGED, KEYS_MAX, WRONG_REGION
from regionserver.tablets.commands import KEPT_MS, SUPERSEDED, TABLET_FULL, TOO_OLD, WriteOutcome
from regionserver.tablets.messages import (
    NO_REPLICA,
    OUTCOME_UNKNOWN,
    REPLICA_FAILED,
    KnownLeader,
    LeaderElsewhere,
    Leaders,
    TabletLeader,
    TabletWrite,
    TabletWritten,
    WhoLeads,
)
from tests.support.fake_tablets import FakeTablets
from tests.support.helpers import eventually
from tests.unit.regionserver.client.test_client import PATHS, Store
from tests.unit.regionserver.tablets.test_writers import DictStore

SERVERS = ("s1", "s2", "s3")
#: Delay of a thread on a busy machine.
SLACK_S = 10.0


class Bench:
    """Servers, the store's records, and a client. Table "rows" has a tablet below "m" and one above."""

    def __init__(self) -> None:
        self.servers = FakeTablets(DictStore)
        self.store = Store()
        self.store.znodes[PATHS.cluster] = layout.encode(ClusterRecord("c1"))
        self.attempts: list[Attempt] = []
        self.add_table("rows", ["", "m", ""])
        self.register()
        self.client = self.new_client()

    def new_client(self) -> RegionClient:
        return RegionClient(RegionLocator(self.store, PATHS), timeout_s=SLACK_S, on_attempt=self.attempts.append)

    def add_table(self, name: str, splits: list[str], buckets: int = 0, kind: Storage = Storage.TABLET) -> None:
        table = TableRecord(f"id-{name}", name, storage=kind, hash_buckets=buckets)
        self.store.znodes[PATHS.name(name)] = table.table_id.encode()
        self.store.znodes[PATHS.table(table.table_id)] = layout.encode(table)
        members = tuple(Member(number, uuid) for number, uuid in enumerate(SERVERS, 1))
        for number, (start, end) in enumerate(itertools.pairwise(splits)):
            record = RegionRecord(
                table.table_id,
                f"{table.table_id}.{number}",
                start,
                end,
                hash_buckets=buckets,
                members=members,
                next_number=4,
                leader=1,
                leader_term=1,
            )
            self.put_region(record)
            self.servers.add(record, "s1")

    def put_region(self, record: RegionRecord) -> None:
        self.store.znodes[PATHS.region(record.table_id, record.region_id)] = layout.encode(record)

    def register(self) -> None:
        """Write the registrations of the servers with their present ports."""
        for uuid, server in self.servers.servers.items():
            record = ServerRecord(uuid, "127.0.0.1", server.port, 7)
            self.store.znodes[PATHS.server(uuid)] = layout.encode(record)

    def lose_store(self) -> None:
        """Take the store away from now on."""
        self.store.failures = [ConnectionLoss()] * 1_000_000

    @property
    def codes(self) -> list[str]:
        return [one.code for one in self.attempts]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.client.close()
    made.servers.close()


def test_rows_are_put_read_scanned_and_deleted(bench: Bench) -> None:
    client = bench.client
    rows = {f"{letter}{number}": b"%d" % number for letter in "az" for number in range(3)}
    for key, value in rows.items():
        client.put("rows", key, value)
    assert {key: client.get("rows", key) for key in rows} == rows
    assert list(client.scan("rows")) == sorted(rows.items())
    assert list(client.scan("rows", "a1", "z1", rows_max=3)) == sorted(rows.items())[1:4]
    client.delete("rows", "a0")
    client.delete("rows", "a0")
    assert client.get("rows", "a0") is None
    assert len(bench.servers.tablets["id-rows.0"].rows) == 2


def test_many_rows_are_written_in_few_requests_to_each_tablet(bench: Bench) -> None:
    changes = [Change(f"{letter}{number:05}", b"x") for letter in "az" for number in range(KEYS_MAX + 1)]
    assert bench.client.write("rows", [*changes, Change("a00000", None)]) == len(changes) + 1
    assert [len(one.rows) for one in bench.servers.tablets.values()] == [KEYS_MAX, KEYS_MAX + 1]
    assert [one.carried_out for one in bench.servers.tablets.values()] == [2, 2]
    assert sum(1 for _ in bench.client.scan("rows")) == len(changes) - 1


def test_keys_are_placed_in_buckets(bench: Bench) -> None:
    bench.add_table("spread", ["", *(partitioning.prefix(bucket) for bucket in (1, 2, 3)), ""], buckets=4)
    for number in range(20):
        bench.client.put("spread", f"k{number:02}", b"1")
    assert bench.client.compare_and_set("spread", "k00", b"1", b"2")
    assert [key for key, _ in bench.client.scan("spread")] == [f"k{number:02}" for number in range(20)]
    assert bench.client.get("spread", "k00") == b"2"


def test_compare_and_set(bench: Bench) -> None:
    client = bench.client
    assert client.put_if_absent("rows", "lock", b"me")
    assert not client.put_if_absent("rows", "lock", b"you")
    assert not client.compare_and_set("rows", "lock", b"you", b"theirs")
    assert client.compare_and_set("rows", "lock", b"me", b"mine")
    assert client.get("rows", "lock") == b"mine"
    assert client.compare_and_set("rows", "lock", b"mine", None)
    assert client.compare_and_set("rows", "lock", None, None)
    assert client.get("rows", "lock") is None


def test_compare_and_set_on_shared_storage_is_refused(bench: Bench) -> None:
    bench.add_table("old", ["", ""], kind=Storage.SHARED)
    with pytest.raises(Refused, match="shared storage") as raised:
        bench.client.compare_and_set("old", "k", None, b"")
    assert not raised.value.may_have_been_done
    with pytest.raises(NoSuchTable):
        bench.client.compare_and_set("none", "k", None, b"")


def test_a_write_is_carried_out_once_however_often_its_answer_is_lost(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    bench.servers.servers["s1"].resets = 3
    assert bench.client.compare_and_set("rows", "a", b"0", b"1")
    assert bench.client.get("rows", "a") == b"1"
    assert bench.servers.tablets["id-rows.0"].carried_out == 2
    assert bench.codes.count(Code.CONNECTION_LOST) == 3


def test_the_leader_is_followed_without_the_store(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    bench.lose_store()
    for leader in ("s2", "s3", "s1", "s3"):
        bench.servers.lead(leader)
        assert bench.client.compare_and_set("rows", "a", b"0", b"0")
    assert "not_leader" in bench.codes
    bench.attempts.clear()
    bench.client.put("rows", "a", b"1")
    assert bench.codes == [""], "the hint was kept"


def test_a_killed_leader_is_left_within_a_fraction_of_a_second(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    bench.lose_store()
    bench.servers.kill("s1")
    for tablet in bench.servers.tablets.values():
        tablet.leader = ""
    elected: list[float] = []

    def elect() -> None:
        bench.servers.lead("s3")
        elected.append(time.monotonic())

    timer = threading.Timer(0.15, elect)
    timer.start()
    bench.client.put("rows", "a", b"1")
    took_s = time.monotonic() - elected[0]
    timer.join()
    assert took_s < SLACK_S / 2
    assert bench.client.get("rows", "a") == b"1"
    asked = bench.servers.servers["s2"].asked["WhoLeads"]
    assert 1 <= asked <= 0.5 / 0.01 + 100 * took_s


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_one_question_finds_the_new_leaders_of_all_tablets_of_a_lost_server(bench: Bench, how: str) -> None:
    bench.add_table("more", ["", *"bcdefgh", ""])
    for key in "abcdefgh":
        bench.client.put("more", key, b"0")
    if how == "killed":
        bench.servers.kill("s1")
    else:
        bench.servers.servers["s1"].is_frozen = True
    bench.servers.lead("s3")
    bench.client.put("more", "a", b"1")
    servers = bench.servers.servers.values()
    asked = sum(server.asked["WhoLeads"] for server in servers)
    writes = bench.servers.servers["s1"].asked["TabletWrite"]
    del bench.attempts[:]
    for key in "bcdefgh":
        bench.client.put("more", key, b"1")
    assert sum(server.asked["WhoLeads"] for server in servers) == asked
    assert bench.servers.servers["s1"].asked["TabletWrite"] == writes
    assert bench.codes == [""] * 7, "each call was answered by the first server that it asked"


def test_a_survey_while_nobody_leads_does_not_hide_the_leader_that_comes(bench: Bench) -> None:
    for key in ("a", "z"):
        bench.client.put("rows", key, b"0")
    bench.servers.kill("s1")
    first, second = bench.servers.tablets.values()
    first.term, first.leader = 2, "s3"
    second.term, second.leader = 2, ""
    bench.client.put("rows", "a", b"1")
    second.leader = "s2"
    bench.client.put("rows", "z", b"1")
    assert second.rows["z"] == b"1"


def test_a_frozen_leader_keeps_the_request_while_the_others_are_asked(bench: Bench) -> None:
    for key in ("a", "z"):
        bench.client.put("rows", key, b"0")
    frozen = bench.servers.servers["s1"]
    frozen.is_frozen = True
    bench.servers.lead("s2")
    assert bench.client.compare_and_set("rows", "a", b"0", b"1")
    assert frozen.asked["TabletWrite"] == 3
    # The next call to another tablet asks the other servers first.
    bench.client.put("rows", "z", b"1")
    assert frozen.asked["TabletWrite"] == 3


def test_a_leader_that_answers_late_is_waited_for(bench: Bench) -> None:
    servers = bench.servers

    def late(request: object) -> object:
        if isinstance(request, WhoLeads):
            return None
        return deferLater(servers.reactor, 0.6, servers.answer, servers.servers["s1"], request)

    servers.servers["s1"].answer = late
    bench.client.put("rows", "a", b"1")
    assert bench.codes == [""]
    assert servers.servers["s2"].asked["TabletWrite"] == 0


def test_a_restarted_leader_is_found_at_its_new_address_without_the_store(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    bench.lose_store()
    bench.servers.kill("s1")
    bench.servers.start("s1")
    bench.servers.lead("s1")
    bench.client.put("rows", "a", b"1")
    assert bench.servers.tablets["id-rows.0"].rows == {"a": b"1"}


def test_restarted_servers_are_found_at_their_new_addresses_in_the_store(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    for uuid in SERVERS:
        bench.servers.kill(uuid)
    for uuid in SERVERS:
        bench.servers.start(uuid)
    bench.register()
    bench.client.put("rows", "a", b"1")
    assert bench.servers.tablets["id-rows.0"].rows == {"a": b"1"}


def test_members_that_moved_are_found_in_the_store(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    server = bench.servers.servers["s1"]

    def gone(request: object) -> object:
        raise RpcError(NO_REPLICA, "no replica")

    for uuid in ("s1", "s2"):
        bench.servers.servers[uuid].answer = gone
    tablet = bench.servers.tablets["id-rows.0"]
    bench.put_region(
        RegionRecord("id-rows", "id-rows.0", "", "m", members=(Member(4, "s3"),), next_number=5, config_term=2)
    )
    bench.servers.lead("s3")
    bench.client.put("rows", "a", b"1")
    assert tablet.rows == {"a": b"1"}
    assert server.asked["TabletWrite"] >= 1


def test_stale_hints_of_all_servers_end_when_one_leads(bench: Bench) -> None:
    """Every server names another one: the call continues to ask, with its pauses, until one leads."""
    servers = bench.servers
    stale = {"s1": "s2", "s2": "s3", "s3": "s1"}
    end_s = time.monotonic() + 0.5

    def loop(uuid: str) -> object:
        def answer(request: object) -> object:
            if time.monotonic() > end_s:
                return None
            port = servers.servers[stale[uuid]].port
            view = KnownLeader("id-rows.0", 5, TabletLeader(1, stale[uuid], "127.0.0.1", port))
            if isinstance(request, WhoLeads):
                return Leaders([view], servers.time_ms)
            return LeaderElsewhere(view, servers.time_ms)

        return answer

    for uuid in SERVERS:
        servers.servers[uuid].answer = loop(uuid)  # type: ignore[assignment]
    bench.client.put("rows", "a", b"1")
    assert servers.tablets["id-rows.0"].carried_out == 1
    assert len(bench.attempts) < 200, "the servers kept the call busy"


def test_a_batch_for_a_tablet_that_was_split_is_written_in_two_parts(bench: Bench) -> None:
    """The answer of the sealed tablet proves that no copy was carried out, also after one whose outcome was unknown.

    Tried: the client takes the outcome for unknown still; it sends the whole batch to the first daughter.
    """
    parent = layout.decode_region(bench.store.znodes[PATHS.region("id-rows", "id-rows.0")], "id-rows.0")
    bench.client.put("rows", "a", b"0")
    server = bench.servers.servers["s1"]
    refused = []

    def sealed(request: object) -> object:
        if not isinstance(request, TabletWrite) or request.tablet != "id-rows.0":
            return None
        refused.append(request)
        if len(refused) == 1:
            raise RpcError(OUTCOME_UNKNOWN, "leadership ended")
        if len(refused) == 3:
            for name, start, end in (("id-rows.0A", "", "e"), ("id-rows.0B", "e", "m")):
                daughter = msgspec.structs.replace(parent, region_id=name, start_key=start, end_key=end)
                bench.put_region(daughter)
                bench.servers.add(daughter, "s1")
            bench.put_region(msgspec.structs.replace(parent, state=TabletState.REPLACED))
        raise RpcError(WRONG_REGION, "tablet id-rows.0 was split")

    server.answer = sealed
    assert bench.client.write("rows", [Change("b", b"1"), Change("f", b"2"), Change("c", b"3")]) == 3
    assert len(refused) == 3, "it asks again while the daughters are not there yet"
    assert bench.servers.tablets["id-rows.0A"].rows == {"b": b"1", "c": b"3"}
    assert bench.servers.tablets["id-rows.0B"].rows == {"f": b"2"}
    assert bench.servers.tablets["id-rows.0"].rows == {"a": b"0"}


@pytest.mark.parametrize("code", [Code.BUSY, OUTCOME_UNKNOWN, REPLICA_FAILED, NO_REPLICA, DAMAGED, Code.INTERNAL])
def test_passing_errors_are_waited_out(bench: Bench, code: str) -> None:
    left = [code] * 3

    def fail(request: object) -> object:
        if isinstance(request, TabletWrite) and left:
            raise RpcError(left.pop(), "by the test")
        return None

    bench.servers.servers["s1"].answer = fail
    assert bench.client.put_if_absent("rows", "a", b"1")
    assert bench.codes == [code] * 3 + [""]


def test_rejected_requests_are_refused_at_once(bench: Bench) -> None:
    with pytest.raises(Refused) as raised:
        bench.client.put("rows", "a", bytes(2 * 1024 * 1024))
    assert raised.value.code == Code.BAD_REQUEST
    assert not raised.value.may_have_been_done
    with pytest.raises(NoSuchTable):
        bench.client.get("none", "a")


def test_a_full_tablet_refuses(bench: Bench) -> None:
    def full(request: object) -> object:
        return None if isinstance(request, WhoLeads) else TabletWritten(WriteOutcome(TABLET_FULL, 1, 1), 5)

    bench.servers.servers["s1"].answer = full
    with pytest.raises(Refused, match="largest size"):
        bench.client.put("rows", "a", b"1")


def test_a_server_of_another_cluster_is_left_alone(bench: Bench) -> None:
    bench.servers.cluster_id = "c2"
    with pytest.raises(Unavailable, match="cluster"):
        bench.client.put("rows", "a", b"1", timeout_s=0.3)
    assert not bench.servers.tablets["id-rows.0"].rows


@pytest.mark.parametrize("path", [PATHS.region("id-rows", "id-rows.0"), PATHS.cluster], ids=["region", "cluster"])
def test_a_damaged_record_is_an_error_of_the_call(bench: Bench, path: str) -> None:
    bench.store.znodes[path] = b"rubbish"
    with pytest.raises(RecordDamaged, match=path):
        bench.client.get("rows", "a")
    with pytest.raises(RecordDamaged, match=path):
        bench.client.put_if_absent("rows", "a", b"1")


def test_a_damaged_registration_hides_one_member_alone(bench: Bench) -> None:
    bench.store.znodes[PATHS.server("s2")] = b"rubbish"
    bench.client.put("rows", "a", b"1")
    assert bench.client.get("rows", "a") == b"1"


def test_the_error_at_the_deadline_names_the_members(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    for uuid in SERVERS:
        bench.servers.kill(uuid)
    began_s = time.monotonic()
    with pytest.raises(Unavailable) as raised:
        bench.client.put("rows", "a", b"1", timeout_s=0.5)
    assert 0.5 <= time.monotonic() - began_s < 0.5 + SLACK_S
    for uuid in SERVERS:
        assert f"{uuid} (127.0.0.1:{bench.servers.servers[uuid].port})" in str(raised.value)
    assert not raised.value.may_have_been_done


@pytest.mark.parametrize("is_away", [False, True])
def test_a_call_to_frozen_servers_ends_by_its_deadline(bench: Bench, is_away: bool) -> None:
    bench.client.put("rows", "a", b"0")
    if is_away:
        bench.lose_store()
    for server in bench.servers.servers.values():
        server.is_frozen = True
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match="no reply for") as raised:
        bench.client.put("rows", "a", b"1", timeout_s=0.6)
    assert time.monotonic() - began_s < 0.6 + SLACK_S
    assert raised.value.may_have_been_done
    with pytest.raises(Unavailable) as raised:
        bench.client.get("rows", "a", timeout_s=0.1)
    assert not raised.value.may_have_been_done


def test_a_tablet_that_is_being_created_is_waited_for_and_not_written_to(bench: Bench) -> None:
    record = bench.servers.tablets["id-rows.0"].record
    bench.put_region(msgspec.structs.replace(record, state=TabletState.CREATING))
    with pytest.raises(Unavailable, match="CREATING"):
        bench.client.put("rows", "a", b"1", timeout_s=0.1)
    assert not bench.servers.servers["s1"].asked
    timer = threading.Timer(0.1, bench.put_region, (record,))
    timer.start()
    bench.client.put("rows", "a", b"1")
    timer.join()


@pytest.mark.parametrize("code", [SUPERSEDED, TOO_OLD])
def test_a_forgotten_write_is_written_anew_if_nothing_can_have_been_done(bench: Bench, code: int) -> None:
    left = [code, code]

    def forget(request: object) -> object:
        if isinstance(request, TabletWrite) and left:
            return TabletWritten(WriteOutcome(left.pop(), 1, 1), bench.servers.time_ms)
        return None

    bench.servers.servers["s1"].answer = forget
    assert bench.client.put_if_absent("rows", "a", b"1")
    assert bench.servers.tablets["id-rows.0"].carried_out == 1


def test_a_forgotten_write_of_which_a_copy_was_lost_is_unknown(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")

    def forget(request: object) -> object:
        if isinstance(request, TabletWrite) and not bench.servers.servers["s1"].resets:
            return TabletWritten(WriteOutcome(TOO_OLD, 1, 1), bench.servers.time_ms)
        return None

    bench.servers.servers["s1"].resets = 1
    bench.servers.servers["s1"].answer = forget
    with pytest.raises(OutcomeUnknown) as raised:
        bench.client.put("rows", "a", b"1")
    assert raised.value.may_have_been_done


def test_a_client_that_was_idle_for_long_writes_at_once(bench: Bench) -> None:
    bench.client.put("rows", "a", b"0")
    bench.servers.time_ms += 3 * KEPT_MS
    bench.new_client().put("rows", "a", b"1")
    bench.client.put("rows", "a", b"2")
    assert bench.client.get("rows", "a") == b"2"


def test_threads_share_a_client_and_count_exactly(bench: Bench) -> None:
    bench.client.put("rows", "n", b"0")
    is_over = threading.Event()

    def disturb() -> None:
        number = 0
        while not is_over.wait(0.02):
            number += 1
            if number % 3:
                bench.servers.servers["s1"].resets = 1
            else:
                bench.servers.lead(SERVERS[number % 2])

    def add(_: int) -> None:
        for _ in range(20):
            while True:
                value = bench.client.get("rows", "n")
                assert value is not None
                if bench.client.compare_and_set("rows", "n", value, b"%d" % (int(value) + 1)):
                    break

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(6)))
    is_over.set()
    disturbing.join()
    assert bench.client.get("rows", "n") == b"120"


def test_a_table_in_use_is_known_as_a_whole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "FOREKNOWLEDGE_AFTER_S", 0.0)
    bench.client.put("rows", "a", b"1")
    bench.client.put("rows", "a", b"1")
    locator = bench.client.locator
    eventually(lambda: len(locator._tables["rows"].regions) == 2, what="the records of the table")
    bench.lose_store()
    bench.client.put("rows", "z", b"1")


def test_a_large_table_is_read_as_it_is_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "FOREKNOWLEDGE_AFTER_S", 0.0)
    monkeypatch.setattr(context, "FOREKNOWN_REGIONS_MAX", 1)
    monkeypatch.setattr(context.TabletContext, "_read_all", lambda *_: pytest.fail("read"))
    bench.client.put("rows", "a", b"1")
    bench.client.put("rows", "a", b"1")


def test_connections_are_used_again_and_closed_at_the_end(bench: Bench) -> None:
    for _ in range(20):
        bench.client.put("rows", "a", b"1")
    pool = bench.client._tablets._context.pool
    assert sum(map(len, pool._idle.values())) == 1
    bench.client.close()
    assert not any(pool._idle.values())
    eventually(
        lambda: not bench.servers.servers["s1"]._server.connections,  # type: ignore[union-attr]
        what="the end of the connections",
    )


def test_requests_of_other_services_are_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match="tablets"):
        bench.client.call("rows", "a", lambda *_: WhoLeads([]), Leaders)
