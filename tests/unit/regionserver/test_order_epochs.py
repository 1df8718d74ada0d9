"""FW-11: the epoch of an order is checked when the order is carried out, however long the order has waited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.rpc.server import RpcError
from regions.messages import STALE_EPOCH, AlterRegions
from regionserver.config import ServerSettings
from regionserver.opener import NothingOpener
from regionserver.server import RegionServer
from regionserver.session.instance import FORMAT, Instance, InstanceRecord
from regionserver.session.master_link import HeartbeatState


class Server(RegionServer):
    """A server with a lease, whose reads of /epoch the test answers. `obeyed` has the orders that it carried out."""

    def __init__(self, clock: Clock) -> None:
        nowhere = Path("/nowhere")
        super().__init__(
            clock,
            ServerSettings(
                store="127.0.0.1:1", data_dir=nowhere, shared_dir=nowhere / "shared", host="127.0.0.1", port=0
            ),
            Instance(nowhere, -1, InstanceRecord(FORMAT, "me", 0)),
            NothingOpener(),
            died=lambda reason: None,
            workers=lambda *_: None,  # type: ignore[arg-type,return-value]
        )
        self.reads: list[Deferred[int]] = []
        self.obeyed: list[int] = []

    def _holds(self) -> bool:
        return True

    def _read_epoch(self) -> Any:
        self.reads.append(Deferred())
        return self.reads[-1]

    def _obey(self, request: Any) -> Any:
        answer = super()._obey(request)
        self.obeyed.append(request.epoch)
        return answer

    def known(self) -> int:
        """Return the epoch that heartbeats carry."""
        told: HeartbeatState = self.heartbeat_state()
        return told.epoch


class OrderEpochsTest(SynchronousTestCase):
    """Orders of several masters meet in one server that knows epoch 1."""

    def setUp(self) -> None:
        self.server = Server(Clock())
        first = self.order(1)
        self.server.reads.pop().callback(1)
        self.successResultOf(first)

    def order(self, epoch: int) -> Deferred[Any]:
        return maybeDeferred(self.server.dispatch, AlterRegions(epoch, "me", 0, []))

    def assert_stale(self, answer: Deferred[Any]) -> None:
        error: Any = self.failureResultOf(answer, RpcError).value
        assert error.code == STALE_EPOCH

    def test_an_unconfirmed_epoch_blocks_no_master(self) -> None:
        """The known epoch counts until the store has answered; then the former master's orders are rejected."""
        newer = self.order(2)
        self.successResultOf(self.order(1))
        assert self.server.known() == 1
        self.server.reads.pop().callback(2)
        self.successResultOf(newer)
        self.assert_stale(self.order(1))
        assert self.server.obeyed == [1, 1, 2]
        assert self.server.known() == 2

    def test_an_order_that_waited_while_a_higher_epoch_began_is_refused(self) -> None:
        """It passed every check on arrival: the epoch at the time of execution counts."""
        older, newer = self.order(2), self.order(3)
        self.server.reads.pop().callback(3)
        self.assert_stale(older)
        self.successResultOf(newer)
        assert self.server.obeyed == [1, 3]

    def test_an_order_whose_read_saw_a_higher_epoch_is_refused(self) -> None:
        """No order of the newer master has arrived yet."""
        older = self.order(2)
        self.server.reads.pop().callback(3)
        self.assert_stale(older)
        assert self.server.obeyed == [1]
        assert self.server.known() == 3
