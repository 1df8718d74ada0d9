"""A leader's requests to the server of a member that needs a copy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from twisted.internet.defer import Deferred, succeed

from coord.rpc.wire import RpcError
from regions.messages import OwnReplica, ReplicaList, ShowReplicas, TabletReport
from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole
from regionserver.tablets.copying.asking import CopyQuestions, needs_copy, seen_in
from regionserver.tablets.copying.messages import (
    CopyOutcome,
    CopySource,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.host.envelope import Word
from regionserver.tablets.host.wanted_copies import COPIED, CopyWanted
from regionserver.tablets.links import questions as questions_module
from regionserver.tablets.links.questions import ServerQuestions
from regionserver.tablets.process.replica import TabletReplica
from tests.unit.regionserver.tablets.disk.examples import TABLET, ready


def wanted(word: Word) -> CopyWanted:
    return CopyWanted(TABLET, 3, "s3", MemberRole.VOTER, 7, word, 3, 6, 117)


@pytest.mark.parametrize("word", list(COPIED))
def test_every_refusal_that_asks_for_a_copy_shows_a_replica(word: Word) -> None:
    states = {Word.FAILED: ReplicaState.FAILED, Word.DELETED: ReplicaState.TOMBSTONE, Word.OLDER: None}
    expected = None if word is Word.DOES_NOT_EXIST else SeenReplica(3, states[word], 6, 117)
    assert seen_in(wanted(word)) == expected


def test_the_leader_names_itself_as_the_source() -> None:
    replica = TabletReplica(ready(), None, RunState.RUNNING)
    questions = CopyQuestions(ServerQuestions(None).ask, "me", ("h", 7001), {TABLET: replica})
    order = questions._order(wanted(Word.FAILED), replica, None)
    assert order.source == CopySource(2, "me", "h", 7001)
    assert (order.recipient, order.number, order.role, order.term) == ("s3", 3, MemberRole.VOTER, 7)
    assert (order.table, order.start_key, order.end_key, order.hash_buckets) == ("orders", "ä", "k", 4)


def test_nobody_is_asked_whose_address_is_unknown() -> None:
    servers = ServerQuestions(None)
    questions = CopyQuestions(servers.ask, "me", ("h", 7001), {TABLET: TabletReplica(ready(), None, RunState.RUNNING)})
    answers: list[object] = []
    questions.ask(wanted(Word.FAILED)).addCallback(answers.append)
    assert answers == [None]


RUNNING = OwnReplica(
    TabletReport(TABLET, "orders", 3, ReplicaState.RUNNING, 7), leader=2, last_index=90, commit_index=80, last_term=6
)
LACKING = CopyWanted(TABLET, 3, "s3", MemberRole.VOTER, 7, None, lacks=85)


@pytest.mark.parametrize(
    ("own", "needs"),
    [
        (RUNNING, True),
        (replace(RUNNING, commit_index=85), False),
        (replace(RUNNING, leader=1), False),
        (replace(RUNNING, report=replace(RUNNING.report, term=8)), False),
        (replace(RUNNING, report=replace(RUNNING.report, number=4)), False),
        (replace(RUNNING, report=replace(RUNNING.report, state=ReplicaState.COPYING)), False),
    ],
    ids=["lags", "has the entry by now", "follows another", "in a later term", "another number", "is being copied"],
)
def test_a_replica_that_runs_is_copied_only_if_it_needs_this_leaders_rows(own: OwnReplica, needs: bool) -> None:
    assert needs_copy(own, LACKING, 2) is needs


class Server:
    """Stands for the server of a member: answers questions, and notes orders for copies."""

    own: list[OwnReplica]
    orders: list[StartTabletCopy]

    def __init__(self, *_: object) -> None:
        """Take the arguments of an RpcClient."""

    def call(self, message: object, _timeout_s: float, expect: object) -> Deferred[object]:
        if isinstance(message, ShowReplicas):
            return succeed(ReplicaList("s3", 1, Server.own))
        assert isinstance(message, StartTabletCopy)
        Server.orders.append(message)
        return succeed(TabletCopyAnswer(CopyOutcome.STARTED, job=1))

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("own", [[RUNNING], [replace(RUNNING, leader=1)], []], ids=["lags", "follows another", "gone"])
def test_the_end_of_a_running_replicas_log_is_asked_for_first(
    own: list[OwnReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has received no refusal, and the server copies only a replica whose state the sender knows."""
    monkeypatch.setattr(questions_module, "RpcClient", Server)
    Server.own, Server.orders = own, []
    servers = ServerQuestions(None)
    servers.address_of = lambda _: ("h3", 7003)
    questions = CopyQuestions(servers.ask, "me", ("h", 7001), {TABLET: TabletReplica(ready(), None, RunState.RUNNING)})
    answers: list[object] = []
    questions.ask(LACKING).addCallback(answers.append)
    assert answers == [True if own == [RUNNING] else None]
    seen = [order.seen for order in Server.orders]
    assert seen == ([SeenReplica(3, ReplicaState.RUNNING, 6, 90)] if own == [RUNNING] else [])


def test_questions_that_are_open_together_share_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader of many tablets asks one server for many copies at once. Fails with a client for each question, and if
    a connection is closed while another question waits for its answer."""
    clients: list[Waiting] = []

    class Waiting:
        def __init__(self, *_: object) -> None:
            self.answers: list[Deferred[object]] = []
            self.is_closed = False
            clients.append(self)

        def call(self, *_: object, **_more: object) -> Deferred[object]:
            self.answers.append(Deferred())
            return self.answers[-1]

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(questions_module, "RpcClient", Waiting)
    servers = ServerQuestions(None)
    servers.address_of = lambda server: ("h", 7003 if server == "s3" else 7004)
    for server in ("s3", "s3", "s4"):
        servers.ask(server, ShowReplicas(), ReplicaList).addErrback(lambda _: None)
    assert [len(one.answers) for one in clients] == [2, 1]
    clients[0].answers[0].callback(None)
    assert not clients[0].is_closed
    clients[0].answers[1].errback(RpcError("TIMEOUT", ""))
    assert [one.is_closed for one in clients] == [True, False]
    servers.ask("s3", ShowReplicas(), ReplicaList)
    assert len(clients) == 3
