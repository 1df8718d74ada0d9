"""Requests about grants on a master, from the request to the znode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from coord.rpc.server import RpcError
from coord.security.principal import USER, Principal
from master.access.checking import PERMITTED_MAX, MasterChecks
from master.api.roles import is_for_standby
from regions import messages as ms
from regions.messages.staleness import Bound
from regions.records.acts.grants import FIRST, Grant, GrantsRecord, UserRole
from regions.records.znodes import decode_grants, encode
from regions.transitions.entries import REFUSED, REQUEST
from tests.unit.master.active_fixture import LAYOUT, Bench
from tests.unit.master.api.test_recording import events

ADMIN, ALICE = Principal(USER, "admin"), Principal(USER, "alice")
TO_ALICE = ms.ChangeGrant("alice", UserRole.WRITE, "orders")


class Checked(Bench):
    """A master that checks its callers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checks = MasterChecks(self.clock, LAYOUT.grants, self, self.clock.seconds, is_for_standby)  # type: ignore[assignment, arg-type]
        self.checks.follow(self.store)  # type: ignore[attr-defined]
        self.hold_servers()
        self.go_on()

    def send(self, who: Principal, request: ms.MasterRequest) -> Any:
        """Return the reply to a request of `who`, or the text of the rejection, as the RPC server does."""
        self.who = who
        try:
            self.checks.check(who, request)  # type: ignore[attr-defined]
        except RpcError as error:
            return f"{error.code}: {error.message}"
        found: list[Any] = []

        def came(result: Any) -> None:
            if isinstance(result, Failure):
                assert isinstance(result.value, RpcError), result.getTraceback()
                result = f"{result.value.code}: {result.value.message}"
            found.append(result)

        ensureDeferred(self.api.dispatch(request)).addBoth(came)
        self.go_on()
        self.go_on()
        return found[0] if found else None

    @property
    def grants(self) -> GrantsRecord:
        """The grants in the store."""
        return decode_grants(self.store.nodes[LAYOUT.grants][0])


def test_a_grant_has_effect_at_once_on_the_master_that_makes_it(tmp_path: Path) -> None:
    master = Checked(tmp_path)
    assert "may not READ table orders" in master.send(ALICE, ms.DescribeTable("orders"))
    assert master.send(ADMIN, TO_ALICE).detail == "user:alice has write on table orders"
    assert isinstance(master.send(ALICE, ms.DescribeTable("orders")), ms.Regions)
    assert "may not ADMIN table orders" in master.send(ALICE, ms.DeleteTable("orders"))
    revoked = ms.ChangeGrant("alice", UserRole.WRITE, "orders", granted=False)
    assert master.send(ADMIN, revoked).detail == "user:alice has no more write on table orders"
    assert "may not READ table orders" in master.send(ALICE, ms.DescribeTable("orders"))


def test_the_record_says_who_granted_it(tmp_path: Path) -> None:
    """A grant names the table by its id, so it survives a rename, and the identity that the grantor has proved."""
    master = Checked(tmp_path)
    master.send(ADMIN, TO_ALICE)
    grant = master.grants.grants[-1]
    assert grant.is_same(Grant("alice", UserRole.WRITE, "t"))
    assert grant.by == "user:admin"
    shown = master.send(ADMIN, ms.ListGrants("orders")).grants
    assert [(one.user, one.role, one.table, one.by) for one in shown] == [
        ("user:alice", UserRole.WRITE, "orders", "user:admin")
    ]


def test_a_grant_is_made_once_and_a_dry_run_makes_none(tmp_path: Path) -> None:
    master = Checked(tmp_path)
    dry = ms.ChangeGrant("alice", UserRole.WRITE, "orders", dry_run=True)
    assert master.send(ADMIN, dry).detail == "user:alice would have write on table orders"
    assert master.grants == FIRST
    master.send(ADMIN, TO_ALICE)
    assert master.send(ADMIN, TO_ALICE).detail == "user:alice has write on table orders already"
    assert len(master.grants.grants) == 2


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (ms.ChangeGrant("alice", UserRole.READ, "nothing"), "not_found: there is no table 'nothing'"),
        (
            ms.ChangeGrant("alice", UserRole.READ, granted=False),
            "not_found: user:alice has no grant read of the cluster",
        ),
        (ms.ChangeGrant("admin", UserRole.ADMIN, granted=False), "bad_request: user:admin is the last admin"),
        (ms.ChangeGrant("server:s", UserRole.ADMIN), "bad_request: server:s is a daemon"),
    ],
    ids=["no-table", "no-grant", "last-admin", "daemon"],
)
def test_what_cannot_be_changed(tmp_path: Path, request_: ms.ChangeGrant, why: str) -> None:
    master = Checked(tmp_path)
    assert why in master.send(ADMIN, request_)
    assert master.grants == FIRST


def test_a_grant_that_another_master_made_meanwhile_is_kept(tmp_path: Path) -> None:
    """The write is a compare-and-set: the second try begins with what the store has by then."""
    master = Checked(tmp_path)
    master.who = ADMIN
    ensureDeferred(master.api.dispatch(TO_ALICE))
    master.store.answer(1)  # the read; the write is under way
    other = GrantsRecord((*FIRST.grants, Grant("bob", UserRole.READ)))
    master.store.put(LAYOUT.grants, encode(other), 8)
    master.go_on()
    master.go_on()
    assert [one.user for one in master.grants.grants] == ["admin", "bob", "alice"]


def test_grants_of_a_cluster_of_an_earlier_version(tmp_path: Path) -> None:
    """Its znode does not exist yet."""
    master = Checked(tmp_path)
    del master.store.nodes[LAYOUT.grants]
    assert master.send(ADMIN, TO_ALICE).detail == "user:alice has write on table orders"
    assert [one.user for one in master.grants.grants] == ["admin", "alice"]


def test_a_deleted_table_takes_its_grants_along(tmp_path: Path) -> None:
    master = Checked(tmp_path)
    master.send(ADMIN, TO_ALICE)
    master.send(ADMIN, ms.DeleteTable("orders", request_id="r1"))
    assert master.grants == FIRST


def test_a_renamed_table_keeps_its_grants(tmp_path: Path) -> None:
    master = Checked(tmp_path)
    master.send(ADMIN, TO_ALICE)
    master.send(ADMIN, ms.AlterTable("orders", name="sales", request_id="r1"))
    assert isinstance(master.send(ALICE, ms.DescribeTable("sales")), ms.Regions)
    assert [one.table for one in master.send(ADMIN, ms.ListGrants()).grants] == ["", "sales"]


def test_a_repeated_request_is_still_permitted_after_its_own_effect(tmp_path: Path) -> None:
    """A client that waits sends its deletion again. By then the grant is gone with the table."""
    master = Checked(tmp_path)
    master.send(ADMIN, ms.ChangeGrant("alice", UserRole.ADMIN, "orders"))
    deletion = ms.DeleteTable("orders", wait_ms=0, request_id="r1")
    master.send(ALICE, deletion)
    assert master.grants == FIRST
    again = ms.DeleteTable("orders", wait_ms=1, request_id="r1")
    assert "forbidden" not in str(master.send(ALICE, again))
    # Neither another request under this id nor another caller profits.
    assert "forbidden" in master.send(ALICE, ms.DeleteTable("t", request_id="r1"))
    assert "forbidden" in master.send(Principal(USER, "eve"), again)


def test_the_permitted_requests_are_bounded(tmp_path: Path) -> None:
    master = Checked(tmp_path)
    for number in range(PERMITTED_MAX + 5):
        master.checks.check(ADMIN, ms.DeleteTable("orders", request_id=str(number)))  # type: ignore[attr-defined]
    assert len(master.checks._permitted) == PERMITTED_MAX  # type: ignore[attr-defined]


def test_who_am_i(tmp_path: Path) -> None:
    master = Checked(tmp_path)
    master.send(ADMIN, TO_ALICE)
    found = master.send(ALICE, ms.WhoAmI())
    assert (found.identity, [(one.role, one.table) for one in found.grants]) == (
        "user:alice",
        [(UserRole.WRITE, "orders")],
    )
    assert Bench(tmp_path / "open").ask(ms.WhoAmI()) == ms.CallerIdentity(
        "nobody", checked=False, address="127.0.0.1:4711"
    )


def test_an_open_cluster_keeps_grants_and_says_that_they_count_for_nothing(tmp_path: Path) -> None:
    master = Bench(tmp_path)
    assert master.ask(TO_ALICE).detail == "user:alice has write on table orders"
    found = master.ask(ms.ListGrants())
    assert not found.checked
    assert [(one.user, one.by) for one in found.grants] == [("user:admin", ""), ("user:alice", "")]


def test_the_history_names_the_proved_identity(tmp_path: Path) -> None:
    master = Checked(tmp_path)
    master.send(ADMIN, TO_ALICE)
    master.go_on(1.0)
    [entry] = [one for one in events(master) if one.cause == REQUEST]
    assert entry.detail == "grant write on table orders to alice"
    assert entry.origin == "request: ChangeGrant orders from user:admin at 127.0.0.1:4711"


def test_refused_requests_are_in_the_history(tmp_path: Path) -> None:
    """Summed up: one entry, however often."""
    master = Checked(tmp_path)
    for _ in range(50):
        master.send(ALICE, ms.DeleteTable("orders"))
    master.go_on(1.0)
    master.go_on(1.0)
    [entry] = [one for one in events(master) if one.cause == REFUSED]
    assert entry.detail.startswith("DeleteTable: user:alice may not ADMIN table orders")
    assert entry.detail.endswith("(50 times)")


def test_a_standby_refuses_nobody_for_what_it_does_not_know(tmp_path: Path) -> None:
    """Its mirror may lack the table: the caller asks the active master."""
    master = Checked(tmp_path)
    master.active_master = None
    checks: Any = master.checks
    checks.check(ALICE, ms.DeleteTable("orders"))  # answered by NOT_LEADER with the address of the active master
    with pytest.raises(RpcError) as caught:
        checks.check(ALICE, ms.DescribeTable("orders", bound=Bound(max_ms=1_000)))
    assert caught.value.code == ms.TOO_STALE
    with pytest.raises(RpcError) as caught:
        checks.check(ALICE, ms.ListServers())
    assert caught.value.code == ms.FORBIDDEN
