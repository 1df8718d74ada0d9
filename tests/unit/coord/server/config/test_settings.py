"""Settings and zoo.cfg: accepted values, and one clear line for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coord.errors import ConfigError
from coord.server.config.secrets import warn_if_open
from coord.server.config.settings import FRAME_BYTES_LIMIT, StoreSettings, parse_address, parse_peers, parse_words
from coord.server.config.zoo_cfg import read_zoo_cfg
from coord.server.peers.raft_frames import COMMAND_BYTES_MAX
from coord.server.service import most_clients
from coord.tree.command import COMMAND_HEADER_BYTES
from coord.wire.client_conn import FOUR_LETTER_WORDS, MAX_REPLY_BYTES

PEERS = {1: ("a", 1), 2: ("b", 1), 3: ("c", 1)}


def made(**options: Any) -> StoreSettings:
    """Return the settings of a node of three, with changes."""
    base: dict[str, Any] = {
        "node_id": 1, "data_dir": Path("d"), "client_address": ("h", 1), "peer_address": ("a", 1), "peers": PEERS,
    }  # fmt: skip
    return StoreSettings(**{**base, **options})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"node_id": 0}, "node id 0"),
        ({"node_id": 200}, "node id 200"),
        ({"node_id": 4}, "not among the peers"),
        ({"peer_address": None}, "needs a peer address"),
        ({"peers": {**PEERS, 4: ("a", 1)}}, "same address"),
        ({"tick_ms": 10}, "tick_ms is 10, not between 50 and 60000"),
        ({"session_timeout_min_ms": 5000, "session_timeout_max_ms": 100}, "above the largest"),
        ({"session_timeout_min_ms": -2}, "session_timeout_min_ms is -2, not between 0 and"),
        ({"fsync": "never"}, "fsync"),
        ({"outstanding_max": 0}, "outstanding_max"),
        ({"words": frozenset({"evil"})}, "four-letter word"),
        (
            {"frame_bytes_max": FRAME_BYTES_LIMIT + 1},
            "frame_bytes_max is 33554433, not between 1 and 33554432: lower jute.maxbuffer",
        ),
        ({"frame_bytes_max": 1 << 40}, "jute.maxbuffer"),
        ({"session_timeout_max_ms": 1 << 31}, "session_timeout_max_ms is 2147483648, not between"),
        ({"keep_entries": 10**30}, "keep_entries is 1"),
    ],
)
def test_contradictions_are_named(options: dict[str, Any], wanted: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match=wanted):
        made(**options)


def test_the_longest_request_fits_wherever_it_goes() -> None:
    """In a forwarded command, in a reply to our own client, and as a length that is not a four-letter word."""
    assert made(frame_bytes_max=FRAME_BYTES_LIMIT).frame_bytes_max == FRAME_BYTES_LIMIT
    assert FRAME_BYTES_LIMIT + COMMAND_HEADER_BYTES < COMMAND_BYTES_MAX
    assert FRAME_BYTES_LIMIT < MAX_REPLY_BYTES
    assert all(int.from_bytes(word, "big") > FRAME_BYTES_LIMIT for word in FOUR_LETTER_WORDS)


def test_session_timeouts_are_two_to_twenty_ticks() -> None:
    """Unless they are set."""
    assert (made(tick_ms=2000).timeout_min_ms(), made(tick_ms=2000).timeout_max_ms()) == (4000, 40_000)
    assert made(session_timeout_max_ms=99_000).timeout_max_ms() == 99_000


def test_cluster_id_depends_on_the_peers_or_the_name() -> None:
    """It is equal on all nodes of a cluster, and different for another cluster."""
    assert made().cluster_id() == made(node_id=2).cluster_id()
    assert made().cluster_id() != made(cluster="x").cluster_id()
    assert len(made().cluster_id()) == 16


@pytest.mark.parametrize("text", ["", "host", "host:", "host:0", "host:99999", "host:x", ":"])
def test_bad_addresses_are_refused(text: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match="--x"):
        parse_address(text, "--x")


def test_addresses_and_peers() -> None:
    """Also IPv6 in brackets."""
    assert parse_address("[::1]:80", "x") == ("::1", 80)
    assert parse_peers("1=a:1, 2=[::1]:2") == {1: ("a", 1), 2: ("::1", 2)}
    for text in ("a:1", "x=a:1", "1=a:1,1=b:1", "1=a"):
        with pytest.raises(ConfigError):
            parse_peers(text)


def test_words() -> None:
    """A star means all of them."""
    assert parse_words("srvr, ruok") == {"srvr", "ruok"}
    assert "dump" in parse_words("*")


def zoo_cfg(folder: Path, text: str, my_id: str | None = "2") -> Path:
    """Write a configuration file and its data directory."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    if my_id is not None:
        (data / "myid").write_text(my_id + "\n")
    path = folder / "zoo.cfg"
    path.write_text(f"dataDir={data}\n{text}")
    return path


def test_zoo_cfg_of_three_servers(tmp_path: Path) -> None:
    """The file of an existing ensemble works unchanged."""
    settings = read_zoo_cfg(
        zoo_cfg(
            tmp_path,
            "# comment\ntickTime = 2000\ninitLimit=10\nsyncLimit=5\nclientPort=2181\nmaxClientCnxns=0\n"
            "4lw.commands.whitelist=*\nadmin.serverPort=8080\nautopurge.purgeInterval=1\n"
            "server.1=zoo1:2888:3888\nserver.2=zoo2:2888:3888:participant;0.0.0.0:2182\nserver.3=[::1]:2888:3888;2183\n",
        )
    )
    assert settings.node_id == 2
    assert settings.peers == {1: ("zoo1", 2888), 2: ("zoo2", 2888), 3: ("::1", 2888)}
    assert settings.client_address == ("0.0.0.0", 2182)
    assert (settings.tick_ms, settings.leader_absence_ms) == (2000, 10_000)
    assert settings.connections_per_address_max == 0
    assert "dump" in settings.words
    assert settings.admin_address == ("127.0.0.1", 8080)
    assert settings.warnings == ()


def test_peers_are_listened_for_on_all_addresses_if_told(tmp_path: Path) -> None:
    """The others' name for this node may be that of a NAT or a service, which cannot be bound."""
    text = "clientPort=2181\nserver.1=zoo1:2888:3888\nserver.2=zoo2:2889:3888\n"
    for line, host in (("quorumListenOnAllIPs=true\n", "0.0.0.0"), ("quorumListenOnAllIPs=false\n", "zoo2")):
        settings = read_zoo_cfg(zoo_cfg(tmp_path, text + line))
        assert settings.peer_address == (host, 2889)
        assert settings.first_members()[2].peer == ("zoo2", 2889)
        assert settings.warnings == ()


def test_members_in_a_file_of_their_own(tmp_path: Path) -> None:
    """ZooKeeper moves the members there once reconfig is on; a node that ignored the file would be alone."""
    (tmp_path / "zoo.cfg.dynamic.100000000").write_text(
        "server.1=zoo1:2888:3888:participant;0.0.0.0:2181\nserver.2=zoo2:2888:3888:observer;0.0.0.0:2182\n"
    )
    text = "reconfigEnabled=true\ndynamicConfigFile=zoo.cfg.dynamic.100000000\n"
    settings = read_zoo_cfg(zoo_cfg(tmp_path, text))
    assert (settings.node_id, settings.client_address) == (2, ("0.0.0.0", 2182))
    assert (settings.peers, settings.observers) == ({1: ("zoo1", 2888), 2: ("zoo2", 2888)}, frozenset({2}))
    assert settings.warnings == ()
    with pytest.raises(ConfigError, match=r"zoo.cfg:4: server.3 must be in the file zoo.cfg.dynamic.100000000"):
        read_zoo_cfg(zoo_cfg(tmp_path, text + "server.3=zoo3:2888:3888;2183\n"))
    (tmp_path / "zoo.cfg.dynamic.100000000").write_text("server.1=zoo1\n")
    with pytest.raises(ConfigError, match=r"zoo.cfg.dynamic.100000000:1: server.1"):
        read_zoo_cfg(zoo_cfg(tmp_path, text))


@pytest.mark.parametrize(
    "line",
    [
        "admin.forceHttps=true",
        "skipACL=yes",
        "snapshot.trust.empty=true",
        "quorum.auth.enableSasl=true",
        "ssl.crl=true",
        "ssl.authProvider=ours",
        "zookeeper.DigestAuthenticationProvider.enabled=false",
        "DigestAuthenticationProvider.digestAlg=SHA-256",
    ],
)
def test_what_would_keep_nobody_out_is_not_ignored(tmp_path: Path, line: str) -> None:
    """A store without the restriction would be open to those whom it should keep out."""
    key = line.removeprefix("zookeeper.").partition("=")[0]
    with pytest.raises(ConfigError, match=f"zoo.cfg:3: {key}"):
        read_zoo_cfg(zoo_cfg(tmp_path, f"clientPort=2181\n{line}\n", None))


@pytest.mark.parametrize(
    ("lines", "schemes"),
    [
        ("enforce.auth.enabled=true\nenforce.auth.schemes=digest, sasl\n", ("digest", "sasl")),
        ("sessionRequireClientSASLAuth=true\nenforce.auth.schemes=digest\n", ("sasl",)),
        ("enforce.auth.enabled=false\nenforce.auth.schemes=digest\n", ()),
    ],
)
def test_zoo_cfg_requires_identities_of_clients(tmp_path: Path, lines: str, schemes: tuple[str, ...]) -> None:
    """ZooKeeper's keys, with ZooKeeper's order between the two."""
    (tmp_path / "jaas.conf").write_text('Server { DigestLoginModule required user_bob="builder"; };')
    settings = read_zoo_cfg(zoo_cfg(tmp_path, f"clientPort=2181\njaasConfig=jaas.conf\n{lines}", None))
    assert (settings.required_schemes, settings.warnings) == (schemes, warn_if_open(tmp_path / "jaas.conf"))


@pytest.mark.parametrize("key", ["jaasConfig", "java.security.auth.login.config", "zookeeper.jaasConfig"])
def test_zoo_cfg_names_the_jaas_file_as_the_jvm_does(tmp_path: Path, key: str) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('Server { DigestLoginModule required user_bob="builder"; };')
    jaas.chmod(0o600)
    settings = read_zoo_cfg(zoo_cfg(tmp_path, f"clientPort=2181\n{key}=jaas.conf\n", None))
    assert (settings.sasl_users, settings.warnings) == ({"bob": "builder"}, ())


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("enforce.auth.enabled=true\n", "zoo.cfg:3: enforce.auth.schemes is missing"),
        ("enforce.auth.enabled=yes\n", "zoo.cfg:3: enforce.auth.enabled='yes' is neither true nor false"),
        ("enforce.auth.enabled=true\nenforce.auth.schemes=ip\n", "'ip' cannot be required .* keep nobody out"),
        ("enforce.auth.enabled=true\nenforce.auth.schemes=kerberos\n", "'kerberos' cannot be required"),
        ("sessionRequireClientSASLAuth=true\n", "there are no SASL users"),
        ("enforce.auth.enabled=true\nenforce.auth.schemes=x509\n", "no port asks for a certificate"),
        ("clientPort=2182\n", "zoo.cfg:3: clientPort has another value at .*zoo.cfg:2"),
        ("zookeeper.clientPort=2182\n", "zoo.cfg:3: clientPort has another value at .*zoo.cfg:2"),
        ("server.x=zoo1:2888:3888\n", "zoo.cfg:3: server.x: 'x' is not a server id"),
        ("server.=zoo1:2888:3888\n", "zoo.cfg:3: server.: '' is not a server id"),
    ],
)
def test_zoo_cfg_that_would_open_a_door_is_refused(tmp_path: Path, lines: str, wanted: str) -> None:
    """One sentence with file and line, and no start: the store would serve those who should be kept out."""
    with pytest.raises(ConfigError, match=wanted):
        read_zoo_cfg(zoo_cfg(tmp_path, f"clientPort=2181\n{lines}", None))


def test_a_line_that_occurs_twice_is_no_fault(tmp_path: Path) -> None:
    """The same value says nothing else."""
    assert read_zoo_cfg(zoo_cfg(tmp_path, "clientPort=2181\nclientPort = 2181\n", None)).client_address[1] == 2181


_STORES = "secureClientPort=2281\nssl.clientAuth=none\nssl.keyStore.location=a.pem\n"


@pytest.mark.parametrize(
    ("lines", "versions", "suites"),
    [
        ("ssl.enabledProtocols=TLSv1.3\n", ("TLSv1.3",), ()),
        ("ssl.protocol=TLSv1.2\n", ("TLSv1.2",), ()),
        ("ssl.protocol=TLSv1.2\nssl.enabledProtocols=TLSv1.1,TLSv1.2,TLSv1.3\n", ("TLSv1.2", "TLSv1.3"), ()),
        ("ssl.ciphersuites=TLS_AES_128_GCM_SHA256\n", (), ("TLS_AES_128_GCM_SHA256",)),
    ],
)
def test_zoo_cfg_chooses_versions_and_suites_of_tls(
    tmp_path: Path, lines: str, versions: tuple[str, ...], suites: tuple[str, ...]
) -> None:
    """The keys of the client port; those of the peers' port have another prefix."""
    settings = read_zoo_cfg(zoo_cfg(tmp_path, f"clientPort=2181\n{_STORES}{lines}", None))
    assert settings.tls is not None
    assert (settings.tls.versions, settings.tls.suites, settings.warnings) == (versions, suites, ())
    with pytest.raises(ConfigError, match=r"zoo.cfg:6: ssl.enabledProtocols: allows none of the versions"):
        read_zoo_cfg(zoo_cfg(tmp_path, f"clientPort=2181\n{_STORES}ssl.enabledProtocols=TLSv1.1\n", None))


def test_protection_that_is_off_is_no_fault(tmp_path: Path) -> None:
    """Settings that match ZooKeeper's defaults."""
    text = "clientPort=2181\nssl.crl=false\nDigestAuthenticationProvider.enabled=true\n"
    text += "DigestAuthenticationProvider.digestAlg=SHA1\nquorum.auth.enableSasl=False\n"
    assert read_zoo_cfg(zoo_cfg(tmp_path, text, None)).warnings == ()


def test_what_zookeeper_takes_is_no_fault(tmp_path: Path) -> None:
    """-1 for the default bounds of session timeouts, and words that this store does not have."""
    text = "clientPort=2181\ntickTime=2000\nminSessionTimeout=-1\nmaxSessionTimeout=-1\n"
    settings = read_zoo_cfg(zoo_cfg(tmp_path, text + "4lw.commands.whitelist=stat, hash, ruok\n", None))
    assert (settings.timeout_min_ms(), settings.timeout_max_ms()) == (4000, 40_000)
    assert settings.words == {"stat", "ruok"}
    [warning] = settings.warnings
    assert warning.endswith("zoo.cfg:6: ignored unknown word 'hash'")


def test_zoo_cfg_of_a_fresh_install(tmp_path: Path) -> None:
    """The sample of ZooKeeper 3.9 with its comments: no warnings, and its values."""
    sample = (
        "# The number of milliseconds of each tick\ntickTime=2000\n# sync phase\ninitLimit=10\nsyncLimit=5\n"
        "# the port at which the clients will connect\nclientPort=2181\n#maxClientCnxns=60\n"
        "#autopurge.snapRetainCount=3\n#metricsProvider.httpPort=7000\n"
    )
    settings = read_zoo_cfg(zoo_cfg(tmp_path, sample, None))
    assert settings.warnings == ()
    assert (settings.timeout_min_ms(), settings.timeout_max_ms(), settings.connections_per_address_max) == (
        4000,
        40_000,
        60,
    )
    assert (settings.reap_interval_ms, settings.enforce_quotas, settings.znodes_max) == (60_000, False, 0)


def test_data_of_a_zookeeper_is_not_taken_for_an_empty_store(tmp_path: Path) -> None:
    """The directory of an existing ensemble is rejected: the store would seem to be empty."""
    path = zoo_cfg(tmp_path, "clientPort=2181\n", None)
    kept = tmp_path / "data" / "version-2"
    kept.mkdir(parents=True)
    with pytest.raises(ConfigError, match="data of an Apache ZooKeeper"):
        read_zoo_cfg(path)
    (kept.parent / "meta.json").write_text("{}")
    assert read_zoo_cfg(path).data_dir == kept.parent


def test_zoo_cfg_of_limits(tmp_path: Path) -> None:
    """ZooKeeper's names where they exist, with or without the prefix of system properties."""
    text = "clientPort=1\nzookeeper.enforceQuota=true\nznode.container.checkIntervalMs=500\nmaxWatches=7\n"
    settings = read_zoo_cfg(zoo_cfg(tmp_path, text + "maxZnodes=8\nmaxDataBytes=9\n", None))
    assert settings.warnings == ()
    assert (settings.enforce_quotas, settings.reap_interval_ms) == (True, 500)
    assert (settings.watches_max, settings.znodes_max, settings.data_bytes_max) == (7, 8, 9)
    with pytest.raises(ConfigError, match="reap_interval_ms is 0, not between 1 and"):
        read_zoo_cfg(zoo_cfg(tmp_path, "clientPort=1\nznode.container.checkIntervalMs=0\n", None))


def test_zoo_cfg_without_servers_is_a_single_node(tmp_path: Path) -> None:
    """Warnings name unknown keys with their line."""
    settings = read_zoo_cfg(zoo_cfg(tmp_path, "clientPort=2181\nclientPortAddress=127.0.0.1\nfoo.bar=1\n", None))
    assert (settings.node_id, settings.peers, settings.client_address) == (1, {}, ("127.0.0.1", 2181))
    [warning] = settings.warnings
    assert "zoo.cfg:4: ignored unknown key foo.bar" in warning


@pytest.mark.parametrize(
    ("text", "my_id", "wanted"),
    [
        ("clientPort=x\n", "1", r"zoo.cfg:2: clientPort='x' is not a number"),
        ("nonsense\n", "1", r"zoo.cfg:2: 'nonsense' is not key=value"),
        ("clientPort=1\nserver.1=a\n", "1", r"zoo.cfg:3: server.1"),
        ("clientPort=1\nserver.1=0.0.0.0:1:2\nserver.2=b:1:2\n", "1", r"zoo.cfg:3: server.1: other nodes cannot dial"),
        ("clientPort=1\nserver.1=a:1:2:observer\n", "1", r"zoo.cfg: all nodes are observers"),
        ("clientPort=1\nserver.1=a:1:2\n", None, "myid"),
        ("clientPort=1\nserver.1=a:1:2\n", "7", "no line server.7"),
        ("clientPort=1\nserver.1=a:1:2\n", "x", "not a node id"),
        ("tickTime=2000\n", "1", "clientPort is missing"),
    ],
)
def test_zoo_cfg_faults_name_file_and_line(tmp_path: Path, text: str, my_id: str | None, wanted: str) -> None:
    """Never a traceback."""
    with pytest.raises(ConfigError, match=wanted):
        read_zoo_cfg(zoo_cfg(tmp_path, text, my_id))


def test_missing_file_is_named(tmp_path: Path) -> None:
    """One clear line."""
    with pytest.raises(ConfigError, match=r"none.cfg: No such file"):
        read_zoo_cfg(tmp_path / "none.cfg")


@pytest.mark.parametrize(
    ("asked", "descriptors", "clients"),
    [(0, 1 << 20, (1 << 20) - 256), (0, 1024, 768), (0, 512, 256), (0, 128, 64), (100, 1024, 100), (2000, 1024, 768)],
)
def test_clients_do_not_get_the_last_descriptor(asked: int, descriptors: int, clients: int) -> None:
    """With any limit, the node keeps some descriptors for itself."""
    assert most_clients(asked, descriptors) == clients
