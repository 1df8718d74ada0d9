"""`rk up` gives an open cluster credentials only as a whole: a request that fails changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cli.common.errors import CliError
from cli.common.local import CERTS_DIR, design
from cli.common.options import Globals
from cli.up.cluster_file import ClusterFile
from cli.up.control import ControlRequest
from cli.up.growing.securing import Securing
from cli.up.shape import shape_of


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


def test_daemons_that_share_a_given_credential_are_not_separated(tmp_path: Path) -> None:
    """Their lists do not name the servers. The next start may be without --store-auth: servers then have super's
    credential, as in earlier builds, and are not locked out."""
    given = Globals()
    given.store_settings["store-auth"] = "ops:secret"
    shape = msgspec.structs.replace(shape_of(given, None, None, None, None, None, None, None), secured=True)
    first = design(shape, tmp_path)
    assert not first.separate_servers
    usual = msgspec.structs.replace(shape, names_credential=False)
    assert not design(usual, tmp_path, first).separate_servers
    separated = design(usual, tmp_path)
    assert separated.separate_servers
    assert not design(shape, tmp_path, separated).separate_servers
    is_open = msgspec.structs.replace(separated, secured=False, separate_servers=False)
    made = Securing(is_open, shape, tmp_path, ClusterFile(is_open, tmp_path, print), dict, list)
    made.is_open = True
    made.answer(ControlRequest("secure", "begin"))
    assert is_open.securing
    assert not is_open.separate_servers
