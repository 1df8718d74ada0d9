"""Calls to a tablet under faults: no write is carried out twice, and no acknowledged write is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from coord.rpc.wire import Code
from regions.records.model import RegionRecord
from regionserver.client import DataError, OutcomeUnknown, Unavailable
from regionserver.client.tablets import answers
from regionserver.client.tablets.answers import CallStep, Meaning
from regionserver.client.tablets.numbers import WriteName
from regionserver.client.tablets.region_call import CallPurpose, RegionCall
from regionserver.tablets.commands import CONDITION_FAILED, DONE, KEPT_MS, CompareAndSet, PutRow
from regionserver.tablets.messages import OUTCOME_UNKNOWN, TabletRead, TabletValues, TabletWrite, TabletWritten
from tests.unit.regionserver.client.tablets.world import REGION, TABLET, SimulatedContext, World

SEEDS = 60
CALLS = 40


class History:
    """Calls of one client, and the violations found."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.context = SimulatedContext(self.world)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        #: Time limit of each call; 0: random.
        self.wait_s = 0.0
        #: The results that the client received, by the value of its write.
        self.told: dict[bytes, str] = {}

    def run(self) -> History:
        rng = self.world.rng
        for number in range(CALLS):
            if rng.random() < 0.4:
                how = rng.choice(("kill", "freeze", "hand over"))
                self.world.at(rng.uniform(0, 0.05), lambda how=how: self.world.lose_leader(how))  # type: ignore[misc]
            if rng.random() < 0.02:
                self.world.leap_ms += rng.choice((-2, 1)) * KEPT_MS
            if rng.random() < 0.2:
                self.read()
            else:
                self.write(b"%d" % number)
            self.world.run_until(self.world.now_s + rng.choice((0, 0.01, 0.5)))
        self.world.run_until(self.world.now_s + 60)
        for value, told in self.told.items():
            done = self.world.done[value]
            if done > 1:
                self.wrong.append(f"write {value!r} was carried out {done} times ({told})")
            if (told == "done" and done != 1) or (told in ("nothing", "condition failed") and done):
                self.wrong.append(f"write {value!r}: the client was told {told}, carried out {done} times")
        return self

    def read(self) -> None:
        before = len(self.world.versions) - 1
        purpose = self.purpose(lambda *_: TabletRead(TABLET, ["k"]), TabletValues)
        try:
            reply = RegionCall(self.context, REGION, purpose).run()
        except Unavailable:
            self.counts["read in vain"] += 1
            return
        possible = self.world.versions[before:]
        if reply.values[0] not in possible:
            self.wrong.append(f"read {reply.values}, the row was {possible}")
        self.counts["read"] += 1

    def write(self, value: bytes) -> None:
        expected = self.world.rows.get("k")
        operation = CompareAndSet("k", value, expected) if self.world.rng.random() < 0.5 else PutRow("k", value)

        def ask(region: RegionRecord, name: WriteName | None) -> TabletWrite:
            assert name is not None
            return TabletWrite(region.region_id, name.writer, name.number, name.done_below, name.began_ms, [operation])

        purpose = self.purpose(ask, TabletWritten)
        try:
            outcome = RegionCall(self.context, REGION, purpose).run().outcome
        except DataError as error:
            self.told[value] = "unknown" if error.may_have_been_done else "nothing"
            if isinstance(error, Unavailable) and self.world.now_s < purpose.deadline_s:
                self.wrong.append(f"write {value!r} gave up before its deadline: {error}")
            if not isinstance(error, Unavailable | OutcomeUnknown):
                self.wrong.append(f"write {value!r}: {error!r}")
        else:
            assert outcome.code in (DONE, CONDITION_FAILED), outcome
            self.told[value] = "done" if outcome.code == DONE else "condition failed"
        if self.world.now_s > purpose.deadline_s + 0.2:
            self.wrong.append(f"write {value!r} ended {self.world.now_s - purpose.deadline_s} s after its deadline")
        self.counts[self.told[value]] += 1

    def purpose(self, ask, expect):  # type: ignore[no-untyped-def]
        wait_s = self.wait_s or self.world.rng.choice((0.1, 0.3, 3, 10))
        return CallPurpose("rows", "k", ask, expect, wait_s, self.world.now_s + wait_s)


def test_no_write_is_done_twice_and_none_is_lost_that_was_reported() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        history = History(seed).run()
        assert not history.wrong, f"seed {seed}: {history.wrong}"
        counts += history.counts
    assert counts["done"] > 20 * counts["nothing"]
    for what in ("done", "condition failed", "unknown", "nothing", "read"):
        assert counts[what], f"never seen: {what}; {counts}"


@pytest.mark.parametrize("code", [Code.CONNECTION_LOST, OUTCOME_UNKNOWN])
def test_a_failure_that_is_taken_for_nothing_done_is_found(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answers.MEANINGS, code, Meaning(False, CallStep.SEARCH))
    assert any(History(seed).run().wrong for seed in range(SEEDS))


def test_an_attempt_under_a_number_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    send = RegionCall._send

    def send_anew(self: RegionCall, sent: object) -> None:  # type: ignore[type-arg]
        if self._is_write:
            self._finish_name()
        send(self, sent)  # type: ignore[arg-type]

    monkeypatch.setattr(RegionCall, "_send", send_anew)
    assert any("times" in str(History(seed).run().wrong) for seed in range(SEEDS))


def test_a_request_that_is_still_out_is_not_taken_for_nothing_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from regionserver.client.tablets.pursuit import Pursuit

    monkeypatch.setattr(Pursuit, "is_out", property(lambda _: False))
    assert any(History(seed).run().wrong for seed in range(SEEDS))


@pytest.mark.parametrize(("how", "gap_s"), [("kill", 0.2), ("hand over", 0.25), ("freeze", 0.25)])
def test_a_call_ends_soon_after_the_election(how: str, gap_s: float) -> None:
    """The time that the client adds to the election."""
    for seed in range(100):
        late_s = _late_s(seed, how)
        assert late_s <= gap_s, f"seed {seed}: {late_s:.3f} s after the election"


def _late_s(seed: int, how: str) -> float:
    """Return the time from the election to the end of the first write."""
    history = History(seed)
    history.world = world = World(seed, faults=0.0)
    history.context = SimulatedContext(world)
    history.wait_s = 10.0
    history.write(b"first")
    world.at(world.rng.uniform(0, 0.02), lambda: world.lose_leader(how))
    world.run_until(world.now_s + world.rng.uniform(0, 0.1))
    history.told.clear()
    began_s = world.now_s
    while not history.told or not world.elected_s:
        history.write(b"w%d" % len(history.told))
    assert "unknown" not in history.told.values()
    return world.now_s - max(world.elected_s, began_s)
