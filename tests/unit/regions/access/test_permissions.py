"""The check: request x role x table, as data, and the age of the grants."""

from __future__ import annotations

from typing import Any

import pytest

from coord.rpc.wire import RpcError
from coord.security.principal import MASTER, NOBODY, NODE, SERVER, USER, Principal
from regions import messages as ms
from regions.access.needs import Scope
from regions.access.permissions import AGE_MAX_S, RIGHTS_MAX, Permissions, Subject
from regions.records.acts.grants import Grant, GrantsRecord, UserRole
from regionserver.kv.messages import KvRead, KvWrite
from regionserver.request_gate import Place
from regionserver.tablets.messages import TabletRead, TabletWrite, WhoLeads

#: Users by what they have: a role on the cluster, or on table t.
GRANTS = GrantsRecord(
    (
        Grant("reader", UserRole.READ),
        Grant("writer", UserRole.WRITE),
        Grant("admin", UserRole.ADMIN),
        Grant("reader_t", UserRole.READ, "t"),
        Grant("writer_t", UserRole.WRITE, "t"),
        Grant("writer_t", UserRole.READ, "t"),
        Grant("admin_t", UserRole.ADMIN, "t"),
    )
)
_READS = "reader writer admin reader_t writer_t admin_t"
_WRITES = "writer admin writer_t admin_t"
_IN_U = Place("u.0", "s", 1, 1)
_IN_T = Place("t.0", "s", 1, 1)

#: Request -> the users who may send it, of those above and of a stranger without grants.
ROWS: tuple[tuple[Any, str], ...] = (
    (ms.Ping(), f"{_READS} stranger"),
    (ms.WhoAmI(), f"{_READS} stranger"),
    (WhoLeads(["t.1"]), f"{_READS} stranger"),
    (ms.ListTables(), "reader writer admin"),
    (ms.ListServers(), "reader writer admin"),
    (ms.DescribeTable("t"), _READS),
    (ms.DescribeTable("u"), "reader writer admin"),
    (ms.DescribeTable("missing"), "reader writer admin"),
    (ms.DescribeRegion("t.0"), _READS),
    (ms.ListTablets(""), "reader writer admin"),
    (KvRead(_IN_T, ["k"]), _READS),
    (KvRead(_IN_U, ["k"]), "reader writer admin"),
    (KvWrite(_IN_T, [], "w", 1), _WRITES),
    (KvWrite(_IN_U, [], "w", 1), "writer admin"),
    (TabletRead("t.1", ["k"]), _READS),
    (TabletWrite("t.1", "w", 1, 0, 0, []), _WRITES),
    (TabletWrite("u.1", "w", 1, 0, 0, []), "writer admin"),
    (ms.CreateTable("new"), "admin"),
    (ms.DeleteTable("t"), "admin admin_t"),
    (ms.DeleteTable("u"), "admin"),
    (ms.MoveRegion("t.0"), "admin admin_t"),
    (ms.MoveRegion("u.0"), "admin"),
    (ms.ChangeGrant("x", UserRole.READ, "t"), "admin admin_t"),
    (ms.ChangeGrant("x", UserRole.READ), "admin"),
    (ms.ListGrants("t"), "admin admin_t"),
    (ms.ListGrants(), "admin"),
    (ms.FenceServer("s"), "admin"),
    (ms.ShutdownCluster(), "admin"),
    (ms.OpenRegions(1, "s", 1, [], 0, "c"), ""),
)
USERS = (*_READS.split(), "stranger")


def find_table(scope: Scope, request: Any) -> Subject | None:
    """Return the table by the first letter of a region; tables t and u exist."""
    if scope is Scope.TABLE:
        name = request.table
    else:
        name = {Scope.PLACE: lambda: request.place.region_id, Scope.TABLET: lambda: request.tablet}.get(
            scope, lambda: request.region_id
        )()[:1]
    return Subject(name, f"table-{name}") if name in ("t", "u") else None


class Bench:
    """Permissions whose clock the test moves."""

    def __init__(self, record: GrantsRecord = GRANTS) -> None:
        self.now_s = 100.0
        self.permissions = Permissions(lambda: self.now_s)
        self.permissions.learn(record, self.now_s)

    def code(self, who: Principal, request: Any) -> str:
        """Return the code of the rejection, "" if the request is permitted."""
        try:
            self.permissions.check(who, request, find_table)
        except RpcError as error:
            return error.code
        return ""

    def text(self, who: Principal, request: Any) -> str:
        """Return the sentence of the rejection."""
        with pytest.raises(RpcError) as caught:
            self.permissions.check(who, request, find_table)
        return caught.value.message


@pytest.mark.parametrize(
    ("request_", "allowed"), ROWS, ids=[f"{number}-{type(one).__name__}" for number, (one, _) in enumerate(ROWS)]
)
def test_who_may_send_what(request_: Any, allowed: str) -> None:
    """Each request is checked twice, because the second check uses the result of the first."""
    bench = Bench()
    for _ in range(2):
        found = {user for user in USERS if bench.code(Principal(USER, user), request_) == ""}
        assert found == set(allowed.split())


@pytest.mark.parametrize("name", ["admin", "stranger"])
def test_no_name_of_a_daemon_gives_the_rights_of_a_user(name: str) -> None:
    """`server:admin` is not an admin, and `user:s1` is not a server."""
    bench = Bench()
    for kind in (NODE, MASTER, SERVER):
        assert bench.code(Principal(kind, name), ms.DeleteTable("t")) == ms.FORBIDDEN
        assert bench.code(Principal(kind, name), KvRead(_IN_T, ["k"])) == ms.FORBIDDEN
    assert bench.code(Principal(USER, name), ms.OpenRegions(1, "s", 1, [], 0, "c")) == ms.FORBIDDEN


def test_daemons_do_their_work_and_nothing_else() -> None:
    bench = Bench(GrantsRecord())
    master, server = Principal(MASTER, "m"), Principal(SERVER, "s")
    order = ms.OpenRegions(1, "s", 1, [], 0, "c")
    assert bench.code(master, order) == ""
    assert bench.code(server, order) == ms.FORBIDDEN
    assert bench.code(master, ms.ListContacts()) == ""  # the live page has the heartbeats of all masters
    assert bench.code(server, ms.ListContacts()) == ms.FORBIDDEN
    assert bench.text(server, ms.DeleteTable("t")) == "server:s may not send DeleteTable: only users send it"
    assert bench.text(server, order) == "server:s may not send OpenRegions: only masters send it"


def test_nobody_gets_nothing() -> None:
    """A caller without an identity, which a secured cluster does not let in at all."""
    assert Bench().code(NOBODY, ms.Ping()) == ms.FORBIDDEN


def test_the_sentence_says_what_to_ask_for() -> None:
    bench = Bench()
    alice, reader = Principal(USER, "alice"), Principal(USER, "reader")
    assert bench.text(alice, KvWrite(_IN_T, [], "w", 1)) == (
        "user:alice may not WRITE table table-t: ask an admin for `rk grant alice write --table table-t`"
    )
    assert bench.text(reader, ms.FenceServer("s")) == (
        "user:reader may not ADMIN the cluster: ask an admin for `rk grant reader admin`"
    )
    assert "table missing" in bench.text(alice, ms.DescribeTable("missing"))


def test_a_revoked_role_ends_with_the_next_read() -> None:
    bench = Bench()
    writer, request = Principal(USER, "writer"), KvWrite(_IN_T, [], "w", 1)
    assert bench.code(writer, request) == ""
    bench.permissions.learn(GrantsRecord(), bench.now_s)
    assert bench.code(writer, request) == ms.FORBIDDEN


@pytest.mark.parametrize("user", ["writer", "writer_t"])
def test_old_grants_are_not_believed(user: str) -> None:
    """At the bound they count, behind it nothing does until the next read; what was found before counts no more."""
    bench = Bench()
    who, request = Principal(USER, user), KvWrite(_IN_T, [], "w", 1)
    assert bench.code(who, request) == ""
    bench.now_s += AGE_MAX_S
    assert bench.code(who, request) == ""
    bench.now_s += 0.1
    assert bench.code(who, request) == ms.BUSY
    assert bench.code(Principal(USER, "stranger"), request) == ms.BUSY
    bench.permissions.learn(GRANTS, bench.now_s)
    assert bench.code(who, request) == ""


def test_grants_that_were_never_read_are_not_believed() -> None:
    permissions = Permissions(lambda: 5.0)
    with pytest.raises(RpcError, match="could not be read from the store yet"):
        permissions.check(Principal(USER, "admin"), ms.ListTables(), find_table)


def test_daemons_work_on_without_grants() -> None:
    """A store that does not answer must not stop orders and heartbeats."""
    bench = Bench()
    bench.now_s += 10 * AGE_MAX_S
    assert bench.code(Principal(MASTER, "m"), ms.OpenRegions(1, "s", 1, [], 0, "c")) == ""
    assert bench.code(Principal(USER, "stranger"), ms.Ping()) == ""


def test_an_overtaken_read_changes_nothing() -> None:
    """A read that began earlier and ends later must neither restore a revoked role nor make it younger."""
    bench = Bench()
    bench.permissions.learn(GrantsRecord(), bench.now_s)
    bench.permissions.learn(GRANTS, bench.now_s - 1)
    assert bench.code(Principal(USER, "writer"), ms.ListTables()) == ms.FORBIDDEN


def test_many_users_do_not_fill_the_memory() -> None:
    bench = Bench()
    for number in range(RIGHTS_MAX + 10):
        bench.code(Principal(USER, f"u{number}"), ms.Ping())
    assert len(bench.permissions._rights) <= RIGHTS_MAX
