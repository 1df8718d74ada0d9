"""What region servers may do with each znode: what they write by design, and nothing else."""

from __future__ import annotations

import pytest

from coord.client.access_lists import letters
from regions.records.znode_table import ZNODES, server_rights
from regions.records.znodes import Layout

#: Every znode that a server changes, creates below or deletes below. Servers read all others.
_WRITTEN = {
    "/servers": "rcd",
    "/servers/<uuid>": "rw",
    "/shared": "rc",
    "/unassigned/<xx>": "rc",
    "/unassigned/<xx>/<region_id>-<replica>": "rw",
    "/regions/<table_id>/<region_id>": "rw",
}


@pytest.mark.parametrize("root", ["/regionkeeper", "/a/b", ""])
def test_servers_write_what_they_write_by_design(root: str) -> None:
    """Each row of the table of znodes, each directory of the layout, and the root itself."""
    layout = Layout(root)
    paths = {path for row in ZNODES for path in (row.path, row.path.rpartition("/")[0]) if path}
    paths |= {path[len(root) :] for path in layout.parents() if path != root and path.startswith(f"{root}/")}
    shards = {path for path in paths if path.startswith("/unassigned/") and len(path) == len("/unassigned/xx")}
    found = {path: letters(layout.server_rights(f"{root}{path}")) for path in paths}
    assert {path: found.pop(path) for path in shards} == dict.fromkeys(shards, "rc")
    written = dict(_WRITTEN)
    del written["/unassigned/<xx>"]
    found.pop("/unassigned/<xx>", None)
    assert {path: rights for path, rights in found.items() if rights != "r"} == written
    for above in ("/", root or "/", f"{root}-revoked-x", "/zookeeper/config"):
        assert letters(layout.server_rights(above)) == "r"


def test_paths_outside_the_root_are_only_read() -> None:
    """A neighbour whose root begins with ours is another cluster's."""
    assert letters(server_rights("/rk", "/rk2/servers")) == "r"
    assert letters(server_rights("/rk", "/rk/servers")) == "rcd"
    assert letters(server_rights("/rk", "/rk/regions/t/r/deeper")) == "r"
