"""Every request of masters and region servers has a row, and the rows say what they should."""

from __future__ import annotations

import typing

import pytest

from coord.security.principal import MASTER, NODE, SERVER
from regions.access.needs import NEEDS, UNKNOWN, Need, Scope, need_of
from regions.messages import MasterRequest, ServerRequest
from regions.records.acts.grants import UserRole
from regionserver.kv.service import KvRegions
from regionserver.tablets.server_tablets import ServerTablets

REQUESTS: tuple[type, ...] = (
    *typing.get_args(MasterRequest),
    *typing.get_args(ServerRequest),
    *KvRegions.requests,
    *ServerTablets.requests,
)
#: The field that a scope reads from a request.
FIELDS = {
    Scope.TABLE: "table",
    Scope.REGION: "region_id",
    Scope.PLACE: "place",
    Scope.TABLET: "tablet",
}
#: Requests that change nothing. Every other one must need more than READ, or no user may send it.
HARMLESS = ("List", "Describe", "Show", "Explain", "Get", "KvRead", "KvScan", "KvVerify", "KvSnapshot", "TabletRead")
ALSO_HARMLESS = ("TabletScan", "TabletSnapshot", "Ping", "WhoAmI", "WhoLeads", "RecentTransitions")


#: Orders about splits and merges.
_RESHARDING = ("FindSplitKey", "PrepareRows", "RemoveRegions")


def test_every_request_has_one_row() -> None:
    """A request that nobody has thought about must not be served by accident. No two requests have one name."""
    names = [one.__name__ for one in REQUESTS]
    assert sorted(set(names)) == sorted(names)
    assert set(names) == set(NEEDS)


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda one: one.__name__)
def test_a_row_names_a_field_of_its_request(request_type: type) -> None:
    """Otherwise the check would look for a table in vain."""
    field = FIELDS.get(need_of(request_type).scope)
    assert field is None or field in request_type.__struct_fields__  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_reading_is_enough_for_what_changes_nothing_alone(name: str) -> None:
    need = NEEDS[name]
    is_harmless = name.startswith(HARMLESS) or name in ALSO_HARMLESS
    if need.role is not None and name != "ListGrants":
        assert (need.role is UserRole.READ) == is_harmless, name
        assert (need.role is UserRole.WRITE) == (name in ("KvWrite", "TabletWrite"))


def test_what_daemons_may_send() -> None:
    """Masters order servers, servers report and copy among each other; nodes of the store ask nothing."""
    by_kind = {kind: {name for name, need in NEEDS.items() if kind in need.daemons} for kind in (NODE, MASTER, SERVER)}
    known = {"Ping", "GetMasterStatus", "ListMasters", "WhoAmI", "WhoLeads"}
    looks = {"GetServerStatus", "ListOpen", "ListDirectories", "ShowReplicas", "ListCopyJobs"}
    regions = {"OpenRegions", "CloseRegions", "AlterRegions", "ReviewReplicas", "PurgeTable"}
    orders = regions | {"ChangeConfig", "SealTablet"}
    assert by_kind[NODE] == set()
    assert by_kind[MASTER] == known | looks | orders | set(_RESHARDING) | {"TransferLeadership", "ListContacts"}
    copies = {"StartTabletCopy", "ShowDigests", "QuarantineReplica"}
    assert by_kind[SERVER] == known | looks | copies | {"Heartbeat"}


def test_no_user_orders_servers_or_reports_as_one() -> None:
    """Not even an admin: orders carry an epoch, and heartbeats an incarnation."""
    orders = (
        "OpenRegions",
        "CloseRegions",
        "AlterRegions",
        "ReviewReplicas",
        "PurgeTable",
        "ChangeConfig",
        "SealTablet",
        *_RESHARDING,
    )
    assert {name for name, need in NEEDS.items() if need.role is None} == {*orders, "Heartbeat"}


def test_a_request_of_another_service_needs_an_admin() -> None:
    class CountUp:
        """A request of a service of somebody's own."""

    assert need_of(CountUp) == UNKNOWN == Need(UserRole.ADMIN, Scope.CLUSTER)
