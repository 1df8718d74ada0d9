"""`rk up` gives an open cluster credentials only as a whole: a request that fails changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cli.common.access import read_access
from cli.common.errors import CliError
from cli.common.local import CERTS_DIR, MASTER, SERVER, design
from cli.common.options import Globals
from cli.up.cluster_file import ClusterFile
from cli.up.control import ControlRequest
from cli.up.growing.rights import store_rights
from cli.up.growing.securing import Securing
from cli.up.shape import shape_of
from coord.wire.digests import digest_of


def test_credentials_that_cannot_be_made_leave_the_cluster_open(tmp_path: Path) -> None:
    """Fails if `answer` sets `securing` before it makes the credentials."""
    shape = shape_of(Globals(), None, None, None, None, None, None, None)
    local = design(shape, tmp_path)
    securing = Securing(local, shape, tmp_path, ClusterFile(local, tmp_path, print), dict, list)
    securing.is_open = True
    (tmp_path / CERTS_DIR).write_text("no directory")
    with pytest.raises(CliError, match="cannot make"):
        securing.answer(ControlRequest("secure", "begin"))
    assert not local.has_credentials
    (tmp_path / CERTS_DIR).unlink()
    commands, _ = securing.answer(ControlRequest("secure", "begin"))
    assert local.securing
    assert all("--certs-dir" in command for command in commands.values())


def test_only_a_new_cluster_begins_with_separate_servers(tmp_path: Path) -> None:
    """The lists of an older one, open or secured, do not name the servers yet; those of a foreign store never do."""
    shape = msgspec.structs.replace(shape_of(Globals(), None, None, None, None, None, None, None), secured=True)
    assert design(shape, tmp_path).separate_servers
    assert not design(msgspec.structs.replace(shape, secured=False), tmp_path).separate_servers
    assert not design(msgspec.structs.replace(shape, outside_store="zk:2181"), tmp_path).separate_servers
    for secured in (False, True):
        before = msgspec.structs.replace(design(shape, tmp_path), secured=secured, separate_servers=False)
        assert not design(shape, tmp_path, before).separate_servers
        made = Securing(before, shape, tmp_path, ClusterFile(before, tmp_path, print), dict, list)
        made.is_open = True
        made.answer(ControlRequest("secure", "separate" if secured else "begin"))
        assert before.separate_servers


def test_servers_do_not_get_the_credential_that_the_options_name(tmp_path: Path) -> None:
    """They prove their own key, in a store of others a credential of their own, and name the masters' identity. A
    cluster of an earlier build shares the credential until its lists are right; an open one is closed to it already.

    Tried: `of_server` without the blanks; `answer` separates at `begin` whatever the options name.
    """
    given = Globals()
    given.store_settings["store-auth"] = "ops:secret"
    shape = msgspec.structs.replace(shape_of(given, None, None, None, None, None, None, None), secured=True)
    local = design(shape, tmp_path)
    assert local.separate_servers
    masters = "digest:ops:" + digest_of("ops", "secret").partition(":")[2]
    rights = store_rights(given, local, tmp_path)
    assert rights[MASTER] == {"RK_STORE_SERVERS": "rk:server"}
    assert rights[SERVER] == {"RK_STORE_SERVERS": "rk:server", "RK_STORE_MASTERS": masters, "RK_STORE_AUTH": ""}
    older = msgspec.structs.replace(local, separate_servers=False)
    assert store_rights(given, older, tmp_path)[SERVER] == rights[MASTER]
    there = msgspec.structs.replace(local, outside=True)
    servers = store_rights(given, there, tmp_path)[SERVER]
    assert (servers["RK_STORE_AUTH"], servers["RK_STORE_MASTERS"]) == (f"@{tmp_path}/store-servers", masters)
    found = read_access({"store-auth": servers["RK_STORE_AUTH"], "store-servers": servers["RK_STORE_SERVERS"]}, {})
    assert found.identities() == servers["RK_STORE_SERVERS"], "the lists name what the servers prove"
    is_open = msgspec.structs.replace(local, secured=False, separate_servers=False)
    made = Securing(is_open, shape, tmp_path, ClusterFile(is_open, tmp_path, print), dict, list)
    made.is_open = True
    made.answer(ControlRequest("secure", "begin"))
    assert (is_open.securing, is_open.separate_servers) == (True, False)
    made.answer(ControlRequest("secure", "separate"))
    assert is_open.separate_servers


def test_identities_that_the_options_name_are_left_alone(tmp_path: Path) -> None:
    given = Globals()
    given.store_settings |= {"store-auth": "ops:secret", "store-servers": "sasl:servers"}
    shape = msgspec.structs.replace(shape_of(given, None, None, None, None, None, None, None), secured=True)
    local = design(shape, tmp_path)
    assert not local.separate_servers
    assert store_rights(given, local, tmp_path)[SERVER] == {"RK_STORE_SERVERS": "sasl:servers"}
