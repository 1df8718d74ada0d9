"""A server accepts an epoch only if the store confirms it."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.errors import ConnectionLoss
from coord.rpc.server import RpcError
from regions.messages import BUSY, UNKNOWN_EPOCH
from regionserver.session.epochs import EPOCH_MAX, PAUSE_S, WAITING_MAX, Epochs


class EpochsTest(SynchronousTestCase):
    """Claimed epochs, and reads of the store that the test answers."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.reads: list[Deferred[int]] = []
        self.known = 3
        self.done: list[str] = []
        self.epochs = Epochs(self.clock, self._read, self._confirmed)

    def _read(self) -> Deferred[int]:
        self.reads.append(Deferred())
        return self.reads[-1]

    def _confirmed(self, epoch: int) -> None:
        self.known = epoch

    def claim(self, epoch: int, name: str) -> Deferred[Any]:
        def go_on() -> str:
            assert self.known >= epoch
            self.done.append(name)
            return name

        return self.epochs.claim(epoch, go_on)

    def code_of(self, answer: Deferred[Any]) -> str:
        return str(self.failureResultOf(answer, RpcError).value.code)

    def test_many_orders_of_a_new_master_cost_one_read(self) -> None:
        """They continue in the order in which they arrived."""
        answers = [self.claim(4, "first")]
        answers += [self.claim(4, f"{n}") for n in range(100)]
        assert len(self.reads) == 1
        self.reads[0].callback(4)
        assert [self.successResultOf(one) for one in answers] == self.done == ["first", *map(str, range(100))]
        assert self.known == 4
        assert len(self.reads) == 1

    def test_a_forged_epoch_changes_nothing(self) -> None:
        """The order is rejected; the next read confirms the real master's next one."""
        forged = self.claim(EPOCH_MAX, "forged")
        self.reads[0].callback(3)
        assert self.code_of(forged) == UNKNOWN_EPOCH
        assert self.known == 3
        real = self.claim(4, "real")
        self.clock.advance(PAUSE_S)
        self.reads[1].callback(4)
        assert self.successResultOf(real) == "real"
        assert self.done == ["real"]

    def test_an_impossible_epoch_is_rejected_at_once(self) -> None:
        """An epoch of 2^62 once made a server reject every real master."""
        for epoch in (EPOCH_MAX + 1, 1 << 62):
            with pytest.raises(RpcError) as refused:
                self.claim(epoch, "forged")
            assert refused.value.code == UNKNOWN_EPOCH
        assert not self.reads

    def test_an_order_that_arrives_during_a_read_causes_another_read(self) -> None:
        """The read may have begun before the order's master wrote its epoch."""
        forged = self.claim(9, "forged")
        real = self.claim(5, "real")
        self.reads[0].callback(4)
        assert self.code_of(forged) == UNKNOWN_EPOCH
        self.assertNoResult(real)
        self.clock.advance(PAUSE_S)
        self.reads[1].callback(5)
        assert self.successResultOf(real) == "real"

    def test_forged_orders_cause_one_read_at_a_time(self) -> None:
        """There is one read at a time, and a pause after a read that has confirmed nothing."""
        for _ in range(20):
            answers = [self.claim(9, "forged") for _ in range(50)]
            if self.reads and not self.reads[-1].called:
                self.reads[-1].callback(3)
            for answer in answers:
                answer.addErrback(lambda _: None)
        assert len(self.reads) == 1
        self.clock.advance(PAUSE_S)
        assert len(self.reads) == 2

    def test_waiting_orders_are_bounded(self) -> None:
        """Orders beyond the limit are answered with a request to retry."""
        first = self.claim(9, "first")
        answers = [self.claim(9, "x") for _ in range(WAITING_MAX)]
        with pytest.raises(RpcError) as refused:
            self.claim(9, "late")
        assert refused.value.code == BUSY
        self.reads[0].callback(9)
        for answer in [first, *answers]:
            self.successResultOf(answer)

    def test_without_the_store_no_epoch_is_confirmed(self) -> None:
        """The order has to be sent again."""
        answer = self.claim(4, "order")
        self.reads[0].errback(ConnectionLoss(""))
        assert self.code_of(answer) == BUSY
        assert self.known == 3

    def test_a_higher_epoch_in_a_heartbeat_reply_causes_a_read(self) -> None:
        """No order waits for it."""
        self.epochs.verify(1 << 62)
        assert not self.reads
        self.epochs.verify(4)
        self.reads[0].callback(4)
        assert self.known == 4

    def test_the_outcome_of_an_order_is_its_reply(self) -> None:
        """Also a late one, or a rejection."""
        later: Deferred[str] = Deferred()

        def refuse() -> None:
            raise RpcError("no_lease", "gone")

        slow, refused = self.epochs.claim(4, lambda: later), self.epochs.claim(4, refuse)
        self.reads[0].callback(4)
        self.assertNoResult(slow)
        assert self.code_of(refused) == "no_lease"
        later.callback("done")
        assert self.successResultOf(slow) == "done"
