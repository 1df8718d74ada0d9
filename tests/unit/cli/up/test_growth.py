"""`rk up` by a topology file, and its growth: shapes, ports, and both files kept true."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.common.errors import CliError, ExitStatus, UsageFaultError
from cli.common.local import LocalCluster, command_line, design, read_cluster, write_cluster
from cli.common.options import Globals
from cli.main import run
from cli.topology.load import load
from cli.up.cluster_file import ClusterFile
from cli.up.control import ControlRequest
from cli.up.growing.growth import Growth, next_daemon
from cli.up.shape import arrange, base_port_of, check_options, shape_of, shape_of_topology

FILE = """
[cluster]
name = "orders"
base-port = 22800
[store]
count = 3
[masters]
count = 1
[servers]
count = 3
racks = 2
[servers.options]
weight = 2
"""


def file_with(folder: Path, text: str = FILE) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def designed(path: Path, before: LocalCluster | None = None) -> tuple[LocalCluster, list[str]]:
    """Return the cluster that `rk up --topology` would start, and its notes."""
    topology = load(path)
    folder = path.parent / "data"
    plain = shape_of(Globals(), before, None, None, None, None, None, None)
    shape = shape_of_topology(topology, plain, before, base_port_of(topology, before, lambda _: True))
    local = design(shape, folder, before)
    return local, arrange(local, topology, path, before, folder)


def growth_of(local: LocalCluster, folder: Path, is_free: object = lambda _: True) -> Growth:
    folder.mkdir(exist_ok=True)
    shape = shape_of(Globals(), local, None, None, None, None, None, None)
    made = Growth(local, shape, folder, ClusterFile(local, folder, print), is_free)  # type: ignore[arg-type]
    made.is_open = True
    return made


def test_a_file_decides_the_shape(tmp_path: Path) -> None:
    local, notes = designed(file_with(tmp_path))
    assert notes == []
    assert [one.address for one in local.coord] == [f"127.0.0.1:2280{n}" for n in (1, 2, 3)]
    assert [one.rack for one in local.servers] == ["rack-1", "rack-2", "rack-1"]
    shape = shape_of(Globals(), local, None, None, None, None, None, None)
    assert command_line(local.servers[0], local, shape)[-2:] == ["--weight", "2"]


def test_growth_is_written_into_both_files_before_the_daemon_starts(tmp_path: Path) -> None:
    """The next start by either file has the same daemons, ports and options.

    Tried: without _record_in_topology the file still lists three servers, and the last comparison fails.
    """
    path = file_with(tmp_path)
    local, _ = designed(path)
    growth = growth_of(local, tmp_path / "data", lambda port: port != 22854)
    daemon, words = growth.add(ControlRequest("add", name="server"))
    assert (daemon.name, daemon.rack) == ("server-4", "rack-2")
    assert daemon.address != "127.0.0.1:22854", "another process has that port"
    assert words[-2:] == ["--weight", "2"]
    node, words = growth.add(ControlRequest("add", name="store"))
    assert node.joined
    assert words[words.index("--join") + 1] == "127.0.0.1:22811,127.0.0.1:22812,127.0.0.1:22813"
    growth.add(ControlRequest("add", name="master"))
    written = read_cluster(tmp_path / "data")
    assert written is not None
    assert written.daemons() == local.daemons()
    assert written.store.endswith("127.0.0.1:22804")
    again, notes = designed(path, written)
    assert again.daemons() == local.daemons()
    assert notes == ["4 store nodes tolerate no more failures than 3: add one, or remove one"]
    plain = shape_of(Globals(), written, None, None, None, None, None, None)
    assert design(plain, tmp_path / "data", written).daemons() == local.daemons()


def test_founders_keep_their_text_after_growth(tmp_path: Path) -> None:
    """The identity of the store follows from --peers, so a node that joined is not in it."""
    local, _ = designed(file_with(tmp_path))
    growth_of(local, tmp_path / "data").add(ControlRequest("add", name="store"))
    shape = shape_of(Globals(), local, None, None, None, None, None, None)
    words = command_line(local.coord[0], local, shape)
    assert words[words.index("--peers") + 1] == "1=127.0.0.1:22811,2=127.0.0.1:22812,3=127.0.0.1:22813"


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (ControlRequest("add", name="node"), "no kind of daemon 'node'"),
        (ControlRequest("add", name="master", rack="r"), "a master has no rack"),
        (ControlRequest("add", name="server", rack="r"), "gives racks by their count"),
    ],
)
def test_refusals_change_nothing(tmp_path: Path, request_: ControlRequest, complaint: str) -> None:
    path = file_with(tmp_path)
    local, _ = designed(path)
    with pytest.raises(CliError, match=complaint):
        growth_of(local, tmp_path / "data").add(request_)
    assert path.read_text() == FILE
    assert len(local.daemons()) == 7


def test_a_changed_file_is_not_grown(tmp_path: Path) -> None:
    path = file_with(tmp_path)
    local, _ = designed(path)
    path.write_text(FILE.replace("count = 1", "count = 2"))
    with pytest.raises(CliError, match="was changed since the cluster started: it differs in master-2"):
        growth_of(local, tmp_path / "data").add(ControlRequest("add", name="server"))
    path.unlink()
    with pytest.raises(CliError, match="no topology file"):
        growth_of(local, tmp_path / "data").add(ControlRequest("add", name="server"))


def test_a_failed_write_takes_the_file_back(tmp_path: Path) -> None:
    path = file_with(tmp_path)
    local, _ = designed(path)
    growth = growth_of(local, tmp_path / "data")
    (tmp_path / "data" / "cluster.json").mkdir()
    with pytest.raises(CliError, match="cannot write"):
        growth.add(ControlRequest("add", name="server"))
    assert path.read_text() == FILE
    assert len(local.servers) == 3


def test_nothing_grows_while_the_cluster_starts_or_stops(tmp_path: Path) -> None:
    local, _ = designed(file_with(tmp_path))
    growth = growth_of(local, tmp_path / "data")
    growth.is_open = False
    with pytest.raises(CliError, match="starting or stopping"):
        growth.add(ControlRequest("add", name="server"))


def test_the_port_plan_has_an_end(tmp_path: Path) -> None:
    local, _ = designed(file_with(tmp_path, FILE.replace("count = 3\nracks", "count = 19\nracks")))
    with pytest.raises(CliError, match="at most 19"):
        next_daemon(local, "server", "", tmp_path, lambda _: True)
    local.outside = True
    with pytest.raises(CliError, match="is not of this cluster"):
        next_daemon(local, "store", "", tmp_path, lambda _: True)


def test_names_choose_ports_that_are_free(tmp_path: Path) -> None:
    """Two clusters on one machine: by their names, past ports in use, and the directory keeps its choice."""
    one = load(file_with(tmp_path, '[cluster]\nname = "one"'))
    two = load(file_with(tmp_path, '[cluster]\nname = "two"'))
    first = base_port_of(one, None, lambda _: True)
    assert first != base_port_of(two, None, lambda _: True)
    assert base_port_of(one, None, lambda port: port != first + 51) != first
    local, _ = designed(file_with(tmp_path))
    assert base_port_of(one, local, lambda _: True) == 22800
    with pytest.raises(CliError, match="no range of 100 ports is free"):
        base_port_of(one, None, lambda _: False)


def test_what_the_file_decides_is_no_option(tmp_path: Path) -> None:
    path = file_with(tmp_path)
    with pytest.raises(UsageFaultError, match="--servers stands beside --topology"):
        check_options(Globals(), load(path), path, {"servers": 3, "masters": None})
    given = Globals()
    given.store_settings["certs-dir"] = str(tmp_path)
    with pytest.raises(UsageFaultError, match="--certs-dir stands beside --topology") as refused:
        check_options(given, load(path), path, {})
    assert refused.value.hint.startswith("Change credentials-dir in ")
    nodes = "".join(f'[[{kind}.node]]\nhost = "db1"\n' for kind in ("store", "masters", "servers"))
    far = file_with(tmp_path, f'[cluster]\nname = "a"\n{nodes}')
    with pytest.raises(UsageFaultError, match="store-1 runs on db1"):
        check_options(Globals(), load(far), far, {})


def test_a_file_decides_who_gets_in_at_every_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An open cluster on an address of other machines starts a second time; TLS needs a store of the cluster's own.

    Fails if `rk up` applies the options --secure and --address before the file: the second start ends with status 2.
    TEST-NET-2 belongs to nobody, so that both starts end at the first port.
    """
    path = file_with(
        tmp_path, FILE.replace("[store]", 'credentials = "insecure"\naddress = "198.51.100.1"\n[store]', 1)
    )
    first, _ = designed(path)
    (tmp_path / "orders").mkdir(mode=0o700)
    write_cluster(first, tmp_path / "orders")
    assert run(["up", "--topology", str(path), "--data-dir", str(tmp_path / "orders")]) == ExitStatus.USAGE
    assert "no daemon can listen on 198.51.100.1" in capsys.readouterr().err
    outside = '[cluster]\nname = "a"\ncredentials = "certificates"\n[store]\noutside = "db1:2181"\n'
    with pytest.raises(UsageFaultError, match="the topology wants TLS on every port"):
        designed(file_with(tmp_path, outside))


def test_a_store_does_not_start_with_other_founders(tmp_path: Path) -> None:
    path = file_with(tmp_path)
    before, _ = designed(path)
    path.write_text(FILE.replace("count = 3\n[masters]", "count = 5\n[masters]"))
    with pytest.raises(UsageFaultError, match="store-4 is new") as caught:
        designed(path, before)
    assert "rk up add store" in caught.value.hint
    path.write_text(FILE.replace("count = 3\n[masters]", "count = 1\n[masters]"))
    with pytest.raises(UsageFaultError, match="1 of the 3 nodes"):
        designed(path, before)
    path.write_text(FILE.replace("count = 3\nracks", "count = 2\nracks"))
    assert designed(path, before)[1] == [f"server-3: not in {path} and not started; the data stays"]


def test_a_file_without_a_founder_keeps_the_identity_and_does_not_take_it_back(tmp_path: Path) -> None:
    """The identity of the store follows from the text of --peers, which names a founder that has left, too."""
    five = FILE.replace("count = 3\n[masters]", "count = 5\n[masters]")
    path = file_with(tmp_path, five)
    before, _ = designed(path)
    path.write_text(FILE)
    local, notes = designed(path, before)
    assert notes == [f"store-4, store-5: not in {path} and not started; the data stays"]
    words = command_line(local.coord[0], local, shape_of(Globals(), local, None, None, None, None, None, None))
    assert words[words.index("--peers") + 1] == ",".join(f"{n}=127.0.0.1:2281{n}" for n in range(1, 6))
    path.write_text(five)
    with pytest.raises(UsageFaultError, match="lists store-4, which has left"):
        designed(path, local)
