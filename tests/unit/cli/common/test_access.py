"""Options and variables for the connection to the store."""

from __future__ import annotations

import http.server
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from cli.common.access import (
    as_variables,
    ask_node,
    expiring_of,
    kazoo_options,
    read_access,
    read_admin_page,
    silence_of,
    store_access,
)
from cli.common.errors import ExitStatus, UsageFaultError
from cli.common.local import design, make_masters_identity, make_super, write_cluster
from cli.common.options import DEFAULT_DATA_DIR, SETTINGS, Globals, variable_of
from cli.main import rk, run
from cli.up.shape import shape_of
from coord.client.access import OPEN_ACCESS
from coord.wire.digests import digest_of
from coord.wire.values import OPEN_ACL, Acl
from tests.support.helpers import free_ports

COMMANDS = (
    ("master", "run"), ("server", "run"), ("coord", "list"), ("coord", "add"), ("coord", "remove"),
    ("coord", "transfer-leader"), ("status",), ("watch",), ("table", "list"), ("region", "list"), ("up",),
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_the_same_options(words: tuple[str, ...]) -> None:
    """Every command that connects to the store can use TLS and a credential."""
    shown = CliRunner().invoke(rk, [*words, "--help"]).output
    for option, _, _ in SETTINGS:
        assert f"--{option}" in shown, (words, option)


def test_a_daemon_takes_nothing_from_a_cluster_in_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may belong to another cluster, whose znodes it would close with a credential that the others have not, or
    whose access lists would name other servers. Tried: without the question for the kind of process."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / DEFAULT_DATA_DIR
    folder.mkdir(mode=0o700)
    local = design(shape_of(Globals(), None, 1, 1, 1, None, None, "greedy"), folder)
    local.secured = True
    write_cluster(local, folder)
    make_super(folder)
    command, daemon = Globals(), Globals()
    daemon.uses_file = False  # as `given_before` does
    assert store_access(command).identities().startswith("digest:super:")
    assert store_access(daemon) == OPEN_ACCESS
    daemon.store_settings["store-auth"] = "ops:secret"
    assert store_access(daemon).servers == ()


def test_options_beat_variables(tmp_path: Path) -> None:
    """The names correspond; a credential may be in a file, whose first line counts."""
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    (tmp_path / "secret").write_text("bob:from-file\nnot this\n")
    (tmp_path / "secret").chmod(0o600)
    known = {"RK_STORE_TLS_CA": str(ca), "RK_STORE_AUTH": "eve:environment", "RK_STORE_TLS_HOST_CHECK": "no"}
    found = read_access({"store-auth": f"@{tmp_path}/secret"}, known)
    assert (found.tls_ca, found.auth, found.verify_host) == (ca, "bob:from-file", False)
    assert "from-file" not in repr(found)
    assert read_access({}, known).auth == "eve:environment"
    assert read_access({}, {}).acl() == OPEN_ACL
    assert variable_of("store-tls-ca") == "RK_STORE_TLS_CA"


@pytest.mark.parametrize("option", ["store-auth", "store-sasl"])
def test_a_credential_that_others_may_read_is_refused(tmp_path: Path, option: str) -> None:
    """As all other secrets in files; a link leads to the file that counts. Tried: `_credential` asks for no mode."""
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.write_text("bob:word")
    link.symlink_to(secret)
    for mode in (0o644, 0o604, 0o660):
        secret.chmod(mode)
        with pytest.raises(UsageFaultError, match=rf"--{option} .*is open to other users: chmod 600"):
            read_access({option: f"@{link}"}, {})
    for mode in (0o600, 0o400, 0o640):
        secret.chmod(mode)
        assert read_access({option: f"@{link}"}, {}).has_credential()


def test_what_is_made_is_for_the_credential() -> None:
    """A digest credential is named by its hash, a SASL user by name; kazoo gets the same."""
    access = read_access({"store-auth": "super:test", "store-sasl": "ops:secret"}, {})
    lines = [Acl(31, b"digest", b"super:D/InIHSb7yEEbrWz8b9l71RjZJU="), Acl(31, b"sasl", b"ops")]
    assert access.acl() == lines
    options = kazoo_options(access)
    assert [(line.perms, line.id.scheme, line.id.id) for line in options["default_acl"]] == [
        (line.perms, line.scheme.decode(), line.id.decode()) for line in lines
    ]


def test_a_store_that_was_away_is_looked_for_twice_a_second() -> None:
    """Kazoo's own pauses double up to a minute, so a cluster that is back would still seem to be away."""
    assert KazooClient("127.0.0.1:1", **kazoo_options(read_access({}, {})))._conn_retry.max_delay <= 0.5


def test_daemons_get_what_was_given_without_a_secret_on_their_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Daemons get the settings as variables; paths are absolute, because a daemon may have another working
    directory."""
    monkeypatch.chdir(tmp_path)
    given = {"store-auth": "@secret", "store-tls-ca": "ca.pem", "store-sasl": "a:b", "store-tls-host-check": "no"}
    assert as_variables(given) == {
        "RK_STORE_AUTH": f"@{tmp_path}/secret",
        "RK_STORE_TLS_CA": f"{tmp_path}/ca.pem",
        "RK_STORE_SASL": "a:b",
        "RK_STORE_TLS_HOST_CHECK": "no",
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"store-auth": "bob"}, "RK_STORE_AUTH"),
        ({"store-sasl": ":x"}, "RK_STORE_SASL"),
        ({"store-auth": "@/nowhere"}, "cannot read /nowhere"),
        ({"store-tls-ca": "/nowhere"}, "file /nowhere does not exist"),
        ({"store-tls-cert": __file__}, "needs TLS"),
        ({"store-tls-ca": __file__, "store-tls-key": __file__}, "without its certificate"),
        ({"store-tls-host-check": "maybe"}, "yes or no"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, str], says: str) -> None:
    """The error has both names of the setting."""
    with pytest.raises(UsageFaultError) as raised:
        read_access(given, {})
    assert says in str(raised.value)


def test_readers_may_read_what_the_credential_creates() -> None:
    """A comma inside a certificate's subject separates nothing; without a credential readers are a fault."""
    readers = "x509:CN=ops,O=Example, sasl:ann,digest:bob:D/InIHSb7yEEbrWz8b9l71RjZJU="
    access = read_access({"store-auth": "rk:secret", "store-readers": readers}, {})
    assert access.acl()[1:] == [
        Acl(1, b"x509", b"CN=ops,O=Example"),
        Acl(1, b"sasl", b"ann"),
        Acl(1, b"digest", b"bob:D/InIHSb7yEEbrWz8b9l71RjZJU="),
    ]
    for text, wanted in (("world:anyone", "not SCHEME:ID"), ("sasl:", "not SCHEME:ID"), ("digest:bob:pw", "USER:HASH")):
        with pytest.raises(UsageFaultError, match=wanted):
            read_access({"store-auth": "rk:secret", "store-readers": text}, {})
    with pytest.raises(UsageFaultError, match="without a credential"):
        read_access({"store-readers": "sasl:ann"}, {})


def test_servers_have_their_own_line_in_every_list() -> None:
    """Masters and servers make the same list for the same znode; a server without its own identity is a fault."""
    masters = "digest:rk:" + digest_of("rk", "secret").partition(":")[2]
    of_master = read_access({"store-auth": "rk:secret", "store-servers": "rk:server", "store-readers": "rk:user"}, {})
    of_server = read_access({"store-masters": masters, "store-servers": "rk:server", "store-readers": "rk:user"}, {})
    for rights in (1, 3, 13):
        lines = of_master.closed_acl(rights)
        assert [(one.perms, one.scheme, one.id) for one in lines[1:]] == [
            (rights, b"rk", b"server"),
            (1, b"rk", b"user"),
        ]
        assert of_server.closed_acl(rights) == lines
    assert of_server.has_credential()
    with pytest.raises(UsageFaultError, match="not the identity of this region server"):
        read_access({"store-masters": masters}, {})
    with pytest.raises(UsageFaultError, match="without a credential"):
        read_access({"store-servers": "rk:server"}, {})


def test_a_directory_gives_each_role_what_it_proves(tmp_path: Path) -> None:
    """Masters and servers make the same lists; a server takes the masters' credential only where it has no identity of
    its own. What is missing or wrong is named with the way out.

    Tried: `read_role` takes `store-auth` for a server first.
    """
    tmp_path.chmod(0o700)
    given = {"store-auth": f"@{tmp_path}"}
    for is_server, needed in ((False, "store-auth of the masters"), (True, "store-masters for a region server")):
        with pytest.raises(UsageFaultError, match=f"has no file {needed}: copy it"):
            read_access(given, {}, is_server=is_server)
    (tmp_path / "store-auth").write_text("super:secret\n")
    with pytest.raises(UsageFaultError, match="open to other users: chmod 600"):
        read_access(given, {})
    (tmp_path / "store-auth").chmod(0o600)
    of_master, of_older = read_access(given, {}), read_access(given, {}, is_server=True)
    assert (of_master, of_older.shares_credential()) == (of_older, True)
    make_masters_identity(tmp_path)
    of_server = read_access(given, {}, is_server=True)
    assert read_access(given, {}) == of_master
    assert (of_server.auth, of_server.shares_credential()) == ("", False)
    for rights in (1, 3, 13):
        assert of_server.closed_acl(rights) == of_master.closed_acl(rights) != []
    assert read_access({**given, "store-readers": "sasl:ann"}, {}).readers == (("sasl", "ann"),)
    (tmp_path / "store-masters").write_text("\n")
    with pytest.raises(UsageFaultError, match="store-masters is empty: copy it again"):
        read_access(given, {}, is_server=True)


class _Page(http.server.BaseHTTPRequestHandler):
    """An admin port with one page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, *_: object) -> None:
        """Write nothing: a thread that outlives its test would write into the output of the next one."""


def test_a_port_for_http_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """An admin port as --store is the likeliest mistake; it accepts connections and is not a store."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"127.0.0.1:{server.server_address[1]}"
        assert run(["table", "list", "--store", address, "--timeout", "1"]) is ExitStatus.REFUSED
        server.shutdown()
        thread.join()
    assert f"{address} is a port for HTTP, not for clients of the store" in capsys.readouterr().err


def test_no_proxy_is_asked_for_an_admin_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edit that makes this fail: `read_admin_page` opens the page with `urlopen`."""
    proxy = f"http://127.0.0.1:{free_ports(1)[0]}"
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert read_admin_page(f"127.0.0.1:{server.server_address[1]}", "/status", 10.0, 100) == b"a page"
        finally:
            server.shutdown()
            thread.join()


def test_silence_is_told_in_words() -> None:
    """A name that does not exist is not a node that is down."""
    assert "cannot be resolved" in silence_of("no.such.host.invalid:2181")
    assert silence_of(f"127.0.0.1:{free_ports(1)[0]}") == "refuses connections"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        assert silence_of(f"127.0.0.1:{listening.getsockname()[1]}") == "accepts connections and does not answer"


@pytest.mark.parametrize("group", ["coord", "server", "backup", "table", "region", "plan", "debug", "master"])
def test_shared_options_stand_between_group_and_command(group: str) -> None:
    """The help says: before or after any subcommand."""
    assert run([group, "--data-dir", "d", "--timeout", "1", "--help"]) is ExitStatus.OK


def test_a_node_is_asked_by_one_connection() -> None:
    """`rk health` reads role and certificate from the same one. The words have blanks that nobody else takes away."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked: list[bytes] = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(4))
                connection.sendall(b"Zookeeper version: 3.9.5, built\nMode: follower\nNode count: 5\n")

        node = threading.Thread(target=answer)
        node.start()
        said = ask_node(f"127.0.0.1:{listener.getsockname()[1]}", "srvr")
        node.join()
    assert asked == [b"srvr"]
    assert said.fields == {"Zookeeper version": "3.9.5, built", "Mode": "follower", "Node count": "5"}
    assert expiring_of(said.certificate, "store-1") == [], "without TLS no certificate is shown"
    assert ask_node(f"127.0.0.1:{free_ports(1)[0]}", "srvr").fields == {}
