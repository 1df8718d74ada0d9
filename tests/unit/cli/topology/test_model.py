"""cli.topology: a file is decoded as it says, and every mistake is named with file, table, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.common.errors import NotFoundError, UsageFaultError
from cli.common.options import Globals
from cli.main import rk
from cli.topology.edit import with_daemon
from cli.topology.load import apply, known_options, load, local_data_dir, parsed
from cli.topology.model import TAKEN, Topology
from cli.topology.words import arguments

ROOT = Path(__file__).parents[4]

MACHINES = """
[cluster]
name = "shop"
credentials = "{credentials}"
[store]
joined = [4]
[[store.node]]
host = "db1"
[[store.node]]
host = "db2"
[[store.node]]
host = "db3"
[[store.node]]
host = "db4"
number = 4
[[masters.node]]
host = "db1"
options = {{ balance-period-s = 10 }}
[servers]
shared-dir = "/mnt/regions"
[servers.options]
handover-s = 60
no-tablets = false
[[servers.node]]
host = "db2"
rack = "east"
options = {{ weight = 2.5 }}
[[servers.node]]
host = "fd00::2"
number = 7
port = 7060
data-dir = "/fast/server-7"
"""


def machines(credentials: str = "keys") -> Topology:
    return parsed(MACHINES.format(credentials=credentials), "shop.toml")


def test_the_example_is_a_topology() -> None:
    """Six servers in three racks, with options for every daemon of a kind."""
    found = load(ROOT / "examples" / "cluster.toml")
    assert found.is_local
    assert [one.name for one in found.store] == ["store-1", "store-2", "store-3"]
    assert [one.rack for one in found.servers] == ["rack-1", "rack-2", "rack-3"] * 2
    assert found.servers[0].options == ("--replica-dead-s", "60")
    assert local_data_dir(found, Path("/x/cluster.toml")) == Path("/x/orders-data")


def test_the_smallest_file_has_the_usual_shape() -> None:
    found = parsed('[cluster]\nname = "a"', "a.toml")
    assert (len(found.store), len(found.masters), len(found.servers)) == (3, 2, 4)
    assert local_data_dir(found, Path("/x/a.toml")) == Path("/x/a-data")


def test_machines_have_usual_ports_and_options_of_their_own() -> None:
    found = machines()
    assert not found.is_local
    assert found.hosts() == ["db1", "db2", "db3", "db4", "fd00::2"]
    assert dict.fromkeys(port for port, _ in found.store[0].uses()) == dict.fromkeys((2181, 2888, 8080))
    assert found.servers[0].options == ("--handover-s", "60", "--weight", "2.5")
    assert found.warnings == ("4 store nodes tolerate no more failures than 3: add one, or remove one",)


def test_command_lines_of_machines() -> None:
    """Founders name each other by the same text, a node that joined names the founders."""
    found = machines()
    words = {one.name: " ".join(arguments(one, found)) for one in found.nodes()}
    founders = "1=db1:2888,2=db2:2888,3=db3:2888"
    assert f"--peers {founders} " in words["store-1"]
    assert f"--peers {founders} " in words["store-3"]
    assert "--join db1:2888,db2:2888,db3:2888 " in words["store-4"]
    assert "--peers" not in words["store-4"]
    assert "--store db1:2181,db2:2181,db3:2181,db4:2181 " in words["master-1"]
    assert words["master-1"].endswith("--store-auth @/etc/regionkeeper/certs --balance-period-s 10")
    assert "--address [fd00::2]:7060 --peer-address [fd00::2]:7052 " in words["server-7"]
    assert "--data-dir /fast/server-7 " in words["server-7"]
    assert "--data-dir /var/lib/regionkeeper/server-1 " in words["server-1"]


@pytest.mark.parametrize(
    ("credentials", "present", "absent"),
    [
        ("keys", "--certs-dir /etc/regionkeeper/certs ", "--insecure"),
        ("certificates", "--certs-dir /etc/regionkeeper/certs/server-1 ", "--insecure"),
        ("insecure", "--insecure", "--certs-dir"),
    ],
)
def test_credentials_reach_the_command_line(credentials: str, present: str, absent: str) -> None:
    found = machines(credentials)
    words = " ".join(arguments(found.servers[0], found))
    assert present in words
    assert absent not in words
    node = " ".join(arguments(found.store[0], found))
    assert ("--require-auth rk" in node, "--insecure" in node) == (credentials != "insecure", credentials == "insecure")


CLUSTER = '[cluster]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "complaint", "hint"),
    [
        ("[cluster\n", "t.toml is not TOML", "toml.io"),
        ("", "the table [cluster] is missing", "Begin with"),
        ("[cluster]", "[cluster] name is missing", "Write name"),
        ("cluster = 3", "[cluster] is 3, not a table", "Write it as [cluster]"),
        ('[cluster]\nname = "A b"', '[cluster] name is "A b", not small letters', "at most 40"),
        (CLUSTER + "base-prot = 1", "[cluster] base-prot is not known", "Did you mean 'base-port'?"),
        (CLUSTER + "[stores]", "stores is not known", "Did you mean 'store'?"),
        (CLUSTER + "base-port = 80", "[cluster] base-port is 80, outside 1024 to 65445", "Give 1024 to"),
        (CLUSTER + 'credentials = "tls"', '[cluster] credentials is "tls"', "insecure, keys, certificates"),
        (
            CLUSTER + 'address = "10.0.0.5"',
            "which other machines reach, with keys",
            'Give credentials = "certificates"',
        ),
        (CLUSTER + "[servers]\ncount = 20", "[servers] count is 20, outside 1 to 19", "Give 1 to 19"),
        (CLUSTER + "[servers]\ncount = true", "[servers] count is true, not a whole number", "count = 4"),
        (CLUSTER + "[store]\nnode = 3", "[store] node is 3, not a list of tables", "[[store.node]]"),
        (CLUSTER + "[store]\nnode = []", "[store] node lists 0 nodes", "List 1 to 9"),
        (CLUSTER + "[store]\ncount = 3\n[[store.node]]", "[store] count stands beside [[store.node]]", "one of"),
        (CLUSTER + '[store]\ncount = 3\noutside = "a:1"', "[store] outside names a store of somebody else", "one of"),
        (CLUSTER + "[store]\njoined = [4]", "[store] joined names node 4", "Leave it out"),
        (CLUSTER + "[store]\ncount = 1\njoined = [1]", "joined names all nodes", "founders"),
        (CLUSTER + '[[servers.node]]\nhost = "a"', "names a host and [store] does not", "Give every daemon"),
        (CLUSTER + "[[servers.node]]\nrcak = 'a'", "[[servers.node]] 1: rcak is not known", "Did you mean 'rack'?"),
        (CLUSTER + "[[servers.node]]\nrack = 'a b'", '1: rack is "a b"', "letters"),
        (CLUSTER + "[[servers.node]]\nport = 70000", "1: port is 70000, outside 1024 to 65535", "Give"),
        (CLUSTER + "[[servers.node]]\ndata-dir = 'x'", '1: data-dir is "x", not an absolute path', "slash"),
        (CLUSTER + "[[servers.node]]\nnumber = 2\n[[servers.node]]", "two nodes with number 2", "its own"),
        (
            CLUSTER + "[[servers.node]]\nport = 2000\n[[servers.node]]\nadmin-port = 2000",
            "server-2 and server-1 have the same port: admin port 2000",
            "another port",
        ),
        (CLUSTER + "[servers.options]\nrack = 'a'", "[servers.options] rack follows from the topology", "own keys"),
        (CLUSTER + "[masters.options]\nstore-auth = 'a:b'", "store-auth follows from", "every user"),
        (CLUSTER + "[masters.options]\nballance-period-s = 1", "is not known", "Did you mean 'balance-period-s'?"),
        (CLUSTER + "[masters.options]\nbalance-period-s = 'often'", "'often' is not a valid float", "--help"),
        (CLUSTER + "[masters.options]\nmirror = 1", "[masters.options] mirror is 1, not true or false", "true"),
        (CLUSTER + "[servers.options]\nweight = [1]", "[servers.options] weight is [1], not one value", "Write"),
    ],
)
def test_each_mistake_is_named_with_its_place_and_remedy(text: str, complaint: str, hint: str) -> None:
    """Tried: without the check of unknown keys in checks.Table the cases of misspelled keys fail."""
    with pytest.raises(UsageFaultError) as caught:
        parsed(text, "t.toml")
    assert caught.value.message.startswith("t.toml")
    assert complaint in caught.value.message
    assert hint in caught.value.hint


def test_options_that_follow_from_the_topology_exist() -> None:
    """A renamed option of a daemon must be renamed in TAKEN as well."""
    known = known_options()
    assert {kind: set(names) - set(known[kind]) for kind, names in TAKEN.items()} == {
        "store": set(),
        "masters": set(),
        "servers": set(),
    }


def test_lists_and_flags_become_words() -> None:
    text = CLUSTER + '[masters.options]\nadmin-name = ["a", "b"]\nmirror = false\n[servers.options]\nno-tablets = true'
    found = parsed(text, "t.toml")
    assert found.masters[0].options == ("--admin-name", "a", "--admin-name", "b", "--no-mirror")
    assert found.servers[0].options == ("--no-tablets",)


@pytest.mark.parametrize("kind", ["store", "masters", "servers"])
def test_a_count_grows_and_comments_stay(kind: str) -> None:
    text = f"# mine\n{CLUSTER}[{kind}]  # here\ncount = 3\n"
    found = with_daemon(text, kind, 4)
    assert "# mine" in found
    assert "# here" in found
    grown = parsed(found, "t.toml")
    assert [one.number for one in getattr(grown, kind)] == [1, 2, 3, 4]
    assert grown.joined == ((4,) if kind == "store" else ())


def test_a_list_grows_by_a_table() -> None:
    text = CLUSTER + "[[servers.node]]\nrack = 'a'\n[masters]\ncount = 1\n"
    grown = parsed(with_daemon(text, "servers", 3, "b"), "t.toml")
    assert [(one.name, one.rack) for one in grown.servers] == [("server-1", "a"), ("server-3", "b")]
    inline = parsed(with_daemon(CLUSTER + "[store]\nnode = [{number = 1}]\n", "store", 2), "t.toml")
    assert [one.number for one in inline.store] == [1, 2]
    usual = parsed(with_daemon(CLUSTER, "servers", 5), "t.toml")
    assert len(usual.servers) == 5


def test_a_command_acts_on_the_cluster_of_a_file(tmp_path: Path) -> None:
    """A local one by its directory, machines by the store's addresses; two places are refused."""
    local = tmp_path / "cluster.toml"
    local.write_text(CLUSTER)
    given = Globals()
    apply(given, local)
    assert given.data_path == tmp_path / "a-data"
    for name in ("data_dir", "store", "masters", "context"):
        for is_first in (False, True):
            given = Globals()
            if is_first:
                setattr(given, name, "other")
            apply(given, local)
            if not is_first:
                setattr(given, name, "other")
            with pytest.raises(UsageFaultError, match=f"--topology and --{name.replace('_', '-')} name two clusters"):
                given.data_path  # noqa: B018 - reading the property checks the places
    several = tmp_path / "shop.toml"
    several.write_text(MACHINES.format(credentials="keys"))
    given = Globals()
    apply(given, several)
    assert given.explicit_store() == "db1:2181,db2:2181,db3:2181,db4:2181"
    assert given.settings()["certs-dir"] == "/etc/regionkeeper/certs"
    with pytest.raises(NotFoundError, match="no topology file"):
        load(tmp_path / "other.toml")


@pytest.mark.parametrize("words", ["status", "health", "coord list", "get t k", "why t", "table list", "drill list"])
@pytest.mark.parametrize("is_first", [True, False])
def test_every_command_finds_the_cluster_of_a_file(tmp_path: Path, words: str, is_first: bool) -> None:
    """Before or after the command's words; a cluster that does not run is named by the file's directory."""
    # Edit: without `topology` in `global_options` each command says "No such option".
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    given = ["--topology", str(file)]
    found = CliRunner().invoke(rk, [*given, *words.split()] if is_first else [*words.split(), *given])
    assert str(found.exception) == f"no local cluster in {tmp_path / 'a-data'}", found.output
