"""The credentials that `rk up` makes, and the choices that lead to them."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from cli.common.errors import CliError, UsageFaultError
from cli.common.local import CERTS_DIR, LocalCluster, Shape, command_line, design
from cli.security import daemons
from cli.up.ports import is_free
from cli.up.shape import with_security
from coord.security.credentials import read_daemon
from coord.security.principal import parse_principal

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SHAPE = Shape(1, 1, 1, 1, 21800, None, "/regionkeeper", "greedy")


def cluster_of(data_dir: Path, *, tls: bool = False, certs_dir: str = "", host: str = "127.0.0.1") -> LocalCluster:
    """Return a cluster with one daemon of each kind."""
    found = with_security(SHAPE, None, None, tls=tls, certs_dir=certs_dir, address=host, data_dir=data_dir)
    return design(found, data_dir)


def files(directory: Path, pattern: str) -> dict[str, bytes]:
    """Return the contents of files."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.glob(pattern)}


def test_each_daemon_has_a_directory_with_its_certificate(tmp_path: Path) -> None:
    """Store nodes are known by number, the others by name. A second start changes nothing."""
    cluster = cluster_of(tmp_path, tls=True)
    daemons.make(cluster, tmp_path, NOW)
    certs = tmp_path / CERTS_DIR
    made = files(certs, "**/*.crt")
    assert {name for name in made if "ca.crt" not in name} == {
        "user.admin.crt",
        "store-1/node.1.crt",
        "master-1/master.master-1.crt",
        "server-1/server.server-1.crt",
    }
    assert read_daemon(certs / "store-1", parse_principal("node:1")).tls_files() is not None
    daemons.make(cluster, tmp_path, NOW)
    assert files(certs, "**/*.crt") == made


@pytest.mark.parametrize("change", ["time", "address"])
def test_certificates_are_renewed_by_the_next_start(tmp_path: Path, change: str) -> None:
    """Before they expire, and when daemons listen elsewhere. Fails if `_is_due` looks at existence alone."""
    daemons.make(cluster_of(tmp_path, tls=True), tmp_path, NOW)
    before = files(tmp_path / CERTS_DIR, "*-1/*-1.crt")
    later = NOW + datetime.timedelta(days=340 if change == "time" else 1)
    host = "127.0.0.1" if change == "time" else "10.0.0.5"
    daemons.make(cluster_of(tmp_path, tls=True, host=host), tmp_path, later)
    after = files(tmp_path / CERTS_DIR, "*-1/*-1.crt")
    assert len(before) == 2
    assert all(after[name] != content for name, content in before.items())


def test_a_directory_with_certificates_stays_one_for_every_port(tmp_path: Path) -> None:
    """Commands and programs find `tls-on-every-port` there, so the daemons must agree."""
    daemons.make(cluster_of(tmp_path, tls=True), tmp_path, NOW)
    assert cluster_of(tmp_path).tls
    plain = design(SHAPE, tmp_path)
    plain.secured = True
    with pytest.raises(CliError, match="says that every port speaks TLS"):
        daemons.make(plain, tmp_path, NOW)


def test_a_named_directory_is_not_filled(tmp_path: Path) -> None:
    """A mistyped --certs-dir must not make another authority."""
    with pytest.raises(CliError, match="cannot issue credentials to store-1, master-1, server-1"):
        daemons.make(cluster_of(tmp_path, tls=True, certs_dir=str(tmp_path / "typo")), tmp_path, NOW)
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    ("secure", "tls", "address", "message"),
    [
        (False, True, None, "--insecure contradicts --tls"),
        (None, False, "10.0.0.5", "can be reached from other machines"),
        (True, False, "10.0.0.5", "can be reached from other machines"),
    ],
)
def test_choices_that_contradict(
    tmp_path: Path, secure: bool | None, tls: bool, address: str | None, message: str
) -> None:
    """One sentence each, before anything starts."""
    with pytest.raises(UsageFaultError, match=message):
        with_security(SHAPE, None, secure, tls=tls, certs_dir="", address=address, data_dir=tmp_path)


def test_an_open_cluster_keeps_its_address_without_being_told_again(tmp_path: Path) -> None:
    """The directory remembers --insecure and --address; another address, or keys, need the choice anew.

    Fails if `with_security` asks for --insecure itself at every start.
    """

    def start(before: LocalCluster | None, secure: bool | None, address: str | None) -> LocalCluster:
        shape = with_security(SHAPE, before, secure, tls=False, certs_dir="", address=address, data_dir=tmp_path)
        return design(shape, tmp_path)

    before = start(None, False, "10.0.0.5")
    again = start(before, None, None)
    assert (again.host, again.secured) == ("10.0.0.5", False)
    for secure, address in ((None, "10.0.0.6"), (True, None)):
        with pytest.raises(UsageFaultError, match="can be reached from other machines"):
            start(before, secure, address)


@pytest.mark.parametrize("opener", ["kv", "none"])
def test_servers_take_tablets_on_every_address(tmp_path: Path, opener: str) -> None:
    """Fails if `command_line` leaves the peers' address to the server's default, which is for loopback alone: then
    `rk up --tls --address` ends at the first table, because no server takes its tablets."""
    cluster = cluster_of(tmp_path, tls=True, host="10.0.0.5")
    words = command_line(cluster.servers[0], cluster, msgspec.structs.replace(SHAPE, opener=opener))
    assert ("--peer-address 10.0.0.5:0" in " ".join(words)) is (opener == "kv")


def test_an_address_of_another_machine_is_a_mistake() -> None:
    """TEST-NET-2 belongs to nobody."""
    with pytest.raises(UsageFaultError, match=r"no daemon can listen on 198\.51\.100\.1"):
        is_free("198.51.100.1", 21800)
