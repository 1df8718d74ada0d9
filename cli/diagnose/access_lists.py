"""Read and write the access lists of all znodes of a cluster, parents first, some hundred requests at a time.

The list of a znode follows from its path (`regions/records/znode_table.py`): masters may do everything, region servers
write only their own znodes, operators read. In a cluster that an earlier build has secured, servers have the masters'
credential and the lists may lack the servers' identity until `rk secure` adds it. The addition takes no permission from
anyone, so old and new lists may coexist for any time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError
from kazoo.security import ACL, Id

from cli.common.connect import Cluster
from cli.common.errors import CliError
from cli.common.output import count
from coord import kill_points
from coord.client.access_lists import UNPROVED, AccessLine, AccessVerdict, compare, describe, has_credential, has_lines
from coord.security import process
from coord.security.revocation import path_of
from coord.wire.opcodes import PERM_ALL, PERM_CREATE, PERM_READ
from coord.wire.values import Acl
from regions.diagnose.fsck import Finding, Fix, FixKind, Problem, make_finding

#: Requests in flight at once, which limits the memory of the store and of this command.
SLICE: Final = 500
#: Deviations that `rk fsck` lists one by one; an open cluster has one for each znode.
LISTED_MAX: Final = 100
EVERYONE_READS: Final = AccessLine(PERM_READ, "world", "anyone")


class ZnodeAccess(NamedTuple):
    """A znode and its access list; `lines` is None if the credential may not read the list."""

    path: str
    lines: list[AccessLine] | None
    #: Counts the changes of the list.
    version: int
    is_ephemeral: bool

    def described(self) -> str:
        """Return the list in words."""
        return "the credential may not even read its access list" if self.lines is None else describe(self.lines)


class WantedLists:
    """The access lists that the znodes of a cluster are to have. False if there is no credential to close them to.

    While the cluster is being secured, clients without a credential may still read.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.access = cluster.access
        self._layout = cluster.layout
        self._is_securing = process.is_securing()
        #: The list for each set of permissions of region servers: it takes hashes, and a walk sees every znode.
        self._by_rights: dict[int, list[AccessLine]] = {}

    def __bool__(self) -> bool:
        return self.access.has_credential()

    def of(self, path: str) -> list[AccessLine]:
        """Return the list of a znode."""
        rights = self._layout.server_rights(path)
        found = self._by_rights.get(rights)
        if found is None:
            found = self._by_rights[rights] = self._lines(self.access.closed_acl(rights))
        return found

    @functools.cached_property
    def _older(self) -> list[AccessLine]:
        """The list of every znode in a cluster of an earlier build."""
        return self._lines(dataclasses.replace(self.access, servers=()).closed_acl())

    def usual(self) -> list[AccessLine]:
        """Return the list of znodes that region servers only read."""
        return self._lines(self.access.closed_acl())

    def judged(self, one: ZnodeAccess, *, older_too: bool = False) -> AccessVerdict:
        """Return how a list differs from the wanted one. `older_too`: accept lists of an earlier build, too."""
        if one.lines is None:
            return AccessVerdict.LACKING
        found = compare(one.lines, self.of(one.path))
        if found is AccessVerdict.RIGHT or not older_too:
            return found
        return AccessVerdict.RIGHT if compare(one.lines, self._older) is AccessVerdict.RIGHT else found

    def _lines(self, acl: list[Acl]) -> list[AccessLine]:
        lines = [AccessLine(line.perms, line.scheme.decode(), line.id.decode()) for line in acl]
        return [*lines, EVERYONE_READS] if self._is_securing else lines


def unnamed_servers(cluster: Cluster) -> str:
    """Return those identities of region servers in the access lists that this command does not know, "" for none.

    Lists without these identities would lock the servers out.
    """
    if cluster.access.servers or not cluster.access.has_credential():
        return ""
    try:
        acl, _ = cluster.client.get_acls(cluster.layout.servers)
    except (NoNodeError, NoAuthError):
        return ""
    mine = {(line.scheme.decode(), line.id.decode()) for line in cluster.access.closed_acl()}
    found = [one.id for one in acl if one.perms & PERM_CREATE and (one.id.scheme, one.id.id) not in mine]
    return ",".join(f"{one.scheme}:{one.id}" for one in found if one.scheme not in UNPROVED)


def names_no_servers(cluster: Cluster) -> bool:
    """Return True if the znodes are closed and their access lists name no region servers, as in clusters of earlier
    builds: the servers have the masters' credential."""
    try:
        acl, _ = cluster.client.get_acls(cluster.layout.servers)
    except (NoNodeError, NoAuthError):
        return False
    is_open = any(one.id.scheme in UNPROVED for one in acl)
    return not is_open and not any(one.perms & PERM_CREATE and one.perms != PERM_ALL for one in acl)


def _needs_no_servers(cluster: Cluster) -> bool:
    """Return True if lists without the servers' identity are sufficient, because servers have the masters'
    credential."""
    return names_no_servers(cluster) if cluster.local is None else not cluster.local.separate_servers


def walk(cluster: Cluster, show: Callable[[str], None]) -> Iterator[ZnodeAccess]:
    """Yield every znode of the cluster with its access list, parents before children; call `show` with progress.

    The caller may restrict each znode before it asks for the next one. Then nobody else can add children to a znode
    that the walk has passed.
    """
    ahead = [cluster.layout.root or "/", *_beside(cluster)]
    seen = 0
    while ahead:
        paths, ahead = ahead[:SLICE], ahead[SLICE:]
        lists = [(path, cluster.client.get_acls_async(path)) for path in paths]
        parents = []
        for path, answer in lists:
            try:
                acl, stat = answer.get()
            except NoNodeError:
                continue
            except NoAuthError:
                yield ZnodeAccess(path, None, -1, is_ephemeral=False)
                continue
            if stat.numChildren:
                parents.append(path)
            if path == "/":
                continue  # of the whole store, not of the cluster
            lines = [AccessLine(line.perms, line.id.scheme, line.id.id) for line in acl]
            yield ZnodeAccess(path, lines, stat.aversion, is_ephemeral=stat.ephemeralOwner != 0)
        ahead += _children(cluster, parents)
        seen += len(paths)
        show(f"{seen:,} znodes: access lists")
    show("")


def _beside(cluster: Cluster) -> list[str]:
    """Return the cluster's znodes that are not below its root: the list of revoked credentials."""
    mine = process.own()
    return [path_of(mine.cluster)] if mine is not None and mine.cluster and cluster.layout.root else []


def _children(cluster: Cluster, parents: list[str]) -> list[str]:
    listings = [(path, cluster.client.get_children_async(path)) for path in parents]
    found = []
    for path, answer in listings:
        try:
            found += [f"{path.rstrip('/')}/{name}" for name in sorted(answer.get())]
        except (NoNodeError, NoAuthError):
            continue
    return [path for path in found if path != "/zookeeper"]


def check_access(cluster: Cluster, show: Callable[[str], None]) -> list[Finding]:
    """Return a finding for each znode of a cluster with a credential whose access list is not the credential's."""
    wanted = WantedLists(cluster)
    if not wanted:
        return []
    unnamed = unnamed_servers(cluster)
    if unnamed:
        servers = cluster.layout.servers
        text = f"{servers}: not judged, as servers have an identity of their own: give --store-servers {unnamed}"
        return [make_finding(Problem.ACCESS, servers, text)]
    findings: list[Finding] = []
    more = 0
    is_older = _needs_no_servers(cluster)
    for one in walk(cluster, show):
        if wanted.judged(one, older_too=is_older) is AccessVerdict.RIGHT:
            continue
        if len(findings) == LISTED_MAX:
            more += 1
            continue
        text = f"{one.path}: {one.described()}"
        fix = None
        if one.lines is not None and not one.is_ephemeral:
            preview = f"the access list of {one.path}: {describe(wanted.of(one.path))}"
            fix = Fix(FixKind.ACCESS, preview, one.path, one.version)
        findings.append(make_finding(Problem.ACCESS, one.path, text, fix))
    if more:
        text = (
            f"{more:,} more znodes have other access lists than the cluster's credential gives: `rk secure` repairs all"
        )
        findings.append(make_finding(Problem.ACCESS, cluster.layout.root, text))
    return findings


def set_access(cluster: Cluster, wanted: WantedLists, path: str, version: int) -> Any:
    """Begin to give a znode the wanted access list, unless its list has changed since; return kazoo's answer."""
    acl = [ACL(line.perms, Id(line.scheme, line.id)) for line in wanted.of(path)]
    return cluster.client.set_acls_async(path, acl, version)


def close_all(
    cluster: Cluster,
    wanted: WantedLists,
    show: Callable[[str], None],
    *,
    dry_run: bool,
    registrations: bool = False,
) -> tuple[int, int, list[str]]:
    """Give every znode the wanted access list; return the number of changed znodes, the number of all znodes, and the
    paths of those that could not be changed.

    Registrations show which daemons have the credential, so they are left out unless `registrations` says that
    `check_daemons` has seen them.
    """
    changed = seen = 0
    failed: list[str] = []
    waiting: list[tuple[str, Any]] = []

    def collect() -> None:
        nonlocal changed
        for path, answer in waiting:
            try:
                answer.get()
                changed += 1
            except NoNodeError:
                continue
            except (BadVersionError, NoAuthError):
                failed.append(path)
        waiting.clear()

    for one in walk(cluster, show):
        seen += 1
        if wanted.judged(one) is AccessVerdict.RIGHT or (one.is_ephemeral and not registrations):
            continue
        if one.lines is None:
            failed.append(one.path)
        elif dry_run:
            changed += 1
        else:
            waiting.append((one.path, set_access(cluster, wanted, one.path, one.version)))
            if len(waiting) == SLICE or kill_points.is_wanted():
                collect()
                kill_points.reached(f"access list {one.path}")
    collect()
    return changed, seen, failed


def check_daemons(cluster: Cluster, wanted: WantedLists) -> tuple[int, int]:
    """Return the numbers of live masters and servers. Raise CliError if one of them runs without the credential, or if
    a master would go on to create znodes that lock the region servers out.

    Each daemon creates its own registration, so the registration's access list shows the daemon's credential.
    """
    layout = cluster.layout
    counts = []
    without = []
    older = []
    for what, parent in (("master", layout.masters), ("server", layout.servers)):
        names = cluster.children(parent)
        counts.append(len(names))
        for name in names:
            try:
                acl, _ = cluster.client.get_acls(f"{parent}/{name}")
            except NoNodeError:
                counts[-1] -= 1
                continue
            except NoAuthError:
                without.append(f"{what} {name} (another credential)")
                continue
            lines = [AccessLine(line.perms, line.id.scheme, line.id.id) for line in acl]
            path = f"{parent}/{name}"
            judged = compare(lines, wanted.of(path))
            if judged in (AccessVerdict.OPEN, AccessVerdict.LACKING) and not has_credential(lines, wanted.of(path)):
                kind = "no credential" if judged is AccessVerdict.OPEN else "another credential"
                without.append(f"{what} {name} ({kind})")
            elif what == "master" and not has_lines(lines, wanted.access.servers):
                older.append(name)
    if without:
        raise CliError(
            f"nothing was changed, as {count(len(without), 'daemon')} would be locked out: {', '.join(without[:5])}",
            "Restart them one after the other with --certs-dir DIR and this credential (--store-auth or RK_STORE_AUTH),"
            " then try again. `rk secure --begin --certs-dir DIR` makes DIR; docs/security.md has all steps.",
        )
    if older:
        raise CliError(
            f"nothing was changed, as {count(len(older), 'master')} would create znodes that lock region servers out:"
            f" {', '.join(older[:5])}",
            "Restart `rk up` with this build; or masters of another kind, one after the other, with --store-auth @DIR,"
            " as `rk systemd` and `rk topology run` do, or with --store-servers.",
        )
    return counts[0], counts[1]
