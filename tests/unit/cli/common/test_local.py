"""The plan of a local cluster and the file that describes it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from cli.common.access import secured_local, store_access
from cli.common.errors import CliError, UsageFaultError
from cli.common.local import (
    MASTERS_MAX,
    SERVERS_MAX,
    STORE_NODES_MAX,
    Shape,
    command_line,
    design,
    digest_of,
    environment_of,
    make_super,
    read_cluster,
    read_super,
    require_cluster,
    write_cluster,
)
from cli.common.options import Globals, variable_of


def shape(**changes: object) -> Shape:
    """Return the default shape, with changes."""
    values: dict[str, object] = {
        "store_nodes": 3,
        "masters": 2,
        "servers": 4,
        "racks": 2,
        "base_port": 21800,
        "outside_store": None,
        "root": "/regionkeeper",
        "plan_engine": "auto",
    }
    return Shape(**{**values, **changes})  # type: ignore[arg-type]


def test_default_shape_has_the_documented_ports(tmp_path: Path) -> None:
    """Fixed distances from the base port."""
    local = design(shape(), tmp_path)
    assert local.store == "127.0.0.1:21801,127.0.0.1:21802,127.0.0.1:21803"
    ports = {daemon.name: [port for port, _ in daemon.ports()] for daemon in local.daemons()}
    assert ports["store-1"] == [21801, 21811, 21821]
    assert ports["master-2"] == [21832, 21842]
    assert ports["server-4"] == [21854, 21874]
    assert [server.rack for server in local.servers] == ["rack-1", "rack-2", "rack-1", "rack-2"]


def test_largest_shape_uses_no_port_twice(tmp_path: Path) -> None:
    """The port plan has room for all daemons."""
    local = design(shape(store_nodes=STORE_NODES_MAX, masters=MASTERS_MAX, servers=SERVERS_MAX), tmp_path)
    ports = [port for daemon in local.daemons() for port, _ in daemon.ports()]
    assert len(ports) == len(set(ports)) == 3 * STORE_NODES_MAX + 2 * MASTERS_MAX + 2 * SERVERS_MAX


def test_outside_store_means_no_nodes_of_our_own(tmp_path: Path) -> None:
    """Masters and servers are given the outside addresses."""
    wanted = shape(outside_store="zk1:2181,zk2:2181")
    local = design(wanted, tmp_path)
    assert local.coord == []
    assert local.outside
    words = command_line(local.masters[0], local, wanted)
    assert words[words.index("--store") + 1] == "zk1:2181,zk2:2181"
    assert words[words.index("--min-servers") + 1] == "4"


def test_store_node_is_told_all_peers(tmp_path: Path) -> None:
    """Its own address is among them."""
    local = design(shape(), tmp_path)
    words = command_line(local.coord[1], local, shape())
    assert words[words.index("--id") + 1] == "2"
    assert words[words.index("--peers") + 1] == "1=127.0.0.1:21811,2=127.0.0.1:21812,3=127.0.0.1:21813"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"store_nodes": 2}, "even number"),
        ({"store_nodes": 0}, "--store-nodes"),
        ({"servers": 20}, "--servers"),
        ({"base_port": 80}, "--base-port"),
        ({"base_port": 65530}, "--base-port"),
    ],
)
def test_impossible_shape_names_its_option(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    """Before anything starts."""
    with pytest.raises(UsageFaultError, match=complaint):
        design(shape(**changes), tmp_path)


def test_description_survives_the_file(tmp_path: Path) -> None:
    """The file is read as it was written."""
    local = design(shape(), tmp_path)
    local.masters[0].pid = 42
    write_cluster(local, tmp_path)
    assert read_cluster(tmp_path) == local


def test_description_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut the file was empty, and `rk up` refused a directory with all the data in it."""
    local = design(shape(), tmp_path)
    write_cluster(local, tmp_path)
    before = (tmp_path / "cluster.json").read_bytes()
    synced: list[tuple[str, bytes]] = []

    def sync(fd: int) -> None:
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{fd}")), (tmp_path / "cluster.json").read_bytes()))

    monkeypatch.setattr(os, "fsync", sync)
    local.masters[0].pid = 42
    write_cluster(local, tmp_path)
    after = (tmp_path / "cluster.json").read_bytes()
    assert synced == [(".cluster.json.tmp", before), (tmp_path.name, after)]
    assert before != after


def test_directory_without_cluster_says_how_to_get_one(tmp_path: Path) -> None:
    """The error names `rk up`, --data-dir and --store."""
    assert read_cluster(tmp_path / "nothing") is None
    with pytest.raises(CliError) as caught:
        require_cluster(tmp_path)
    assert "rk up" in caught.value.hint


@pytest.mark.parametrize("content", [b"{", b'{"format_version": "\xff"}', b"[]"])
def test_unreadable_description_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    """The error names the file."""
    (tmp_path / "cluster.json").write_bytes(content)
    with pytest.raises(CliError, match="cluster description"):
        read_cluster(tmp_path)


def test_super_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    """The file has mode 0600, differs for each cluster, and survives restarts; nodes get only a hash."""
    assert read_super(tmp_path) == ""
    made = make_super(tmp_path)
    assert make_super(tmp_path) == made == read_super(tmp_path)
    assert (tmp_path / "store-auth").stat().st_mode & 0o777 == 0o600
    assert make_super(tmp_path / "other") != made
    local = design(shape(), tmp_path)
    words = command_line(local.daemon("store-1"), local, shape())
    digest = Path(words[words.index("--super-digest-file") + 1])
    assert (digest.read_text().strip(), digest.stat().st_mode & 0o777) == (digest_of(made), 0o600)
    assert made.partition(":")[2] not in " ".join(words)
    assert digest_of(made) not in " ".join(words), "a command line is visible to all users"
    assert digest_of("super:test") == "super:D/InIHSb7yEEbrWz8b9l71RjZJU="


def test_daemons_take_no_other_cluster_for_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """./rk-data has a secured cluster, and `rk up --insecure --data-dir open` starts another one at the same addresses.
    Its masters closed the znodes with the credential of the former, and `rk up` itself was denied access.

    Tried: an environment that does not name the directory of the daemons' cluster.
    """
    for name in ("rk-data", "open"):
        (tmp_path / name).mkdir()
        local = design(shape(), tmp_path / name)
        write_cluster(msgspec.structs.replace(local, secured=name == "rk-data"), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    daemons = Globals()
    daemons.store = local.store
    assert secured_local(daemons)
    variable = variable_of("data-dir")
    monkeypatch.setenv(variable, environment_of(tmp_path / "open")[variable])
    assert not secured_local(daemons)


def test_a_secured_cluster_on_a_store_of_others_has_its_own_credential(tmp_path: Path) -> None:
    """Such a store knows no users of the cluster, so they cannot be readers. While there is no credential, commands
    prove none: every one of them failed.

    Tried: readers without regard to `outside`; readers without a credential.
    """
    local = msgspec.structs.replace(design(shape(outside_store="zk:2181"), tmp_path), secured=True)
    given = Globals()
    given.data_dir = str(tmp_path)
    for is_outside in (False, True):
        write_cluster(msgspec.structs.replace(local, outside=is_outside), tmp_path)
        assert not store_access(given).has_credential()
    made = make_super(tmp_path)
    assert (store_access(given).auth, store_access(given).readers) == (made, ())
