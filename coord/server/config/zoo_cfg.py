"""Reader of ZooKeeper's configuration file.

    key=value, one per line; # begins a comment. `dataDir/myid` has this node's id when there are server lines.

    server.N=host:peerPort:electionPort[:role][;[clientHost:]clientPort]

The server lines may be in a separate file, `dynamicConfigFile`, to which ZooKeeper moves them when `reconfig` is
enabled. The election port is not used: one port carries all traffic between nodes. The role is participant or observer;
if `peerType` contradicts the node's own server line, the line takes precedence. initLimit and syncLimit are accepted;
only syncLimit has an effect (how long a node without a leader keeps its clients). A prefix `zookeeper.`, as of system
properties, is removed. Unknown keys are named in a warning and ignored, so that an existing file works unchanged. Three
faults prevent the start: a setting that decides about access in ZooKeeper and has no effect here; a key with two
different values; a server line whose id is not a number, because a member that overlooked its own line would start as a
separate store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from coord.errors import ConfigError
from coord.server.config.addresses import EVERY_ADDRESS, OBSERVER, Address, MemberAddress, Members, parse_member
from coord.server.config.secrets import read_jaas, read_peer_secret, read_secret, warn_if_open
from coord.server.config.settings import StoreSettings, parse_schemes, parse_words
from coord.tls.context import NEED, NONE, TlsFiles
from coord.tls.suites import parse_suites, parse_versions

#: Folder below dataDir with ZooKeeper's log and snapshots.
_ZOOKEEPERS_DATA: Final = "version-2"
#: Settings that decide who may do what and are not supported here, with the one value that has no effect. Any other
#: value prevents the start: the operator would rely on a protection, or on an access, that does not exist.
_PROTECTIONS: Final = {
    **dict.fromkeys(
        (
            "admin.forceHttps",
            "admin.needClientAuth",
            "quorum.auth.enableSasl",
            "quorum.auth.learnerRequireSasl",
            "quorum.auth.serverRequireSasl",
            "ssl.clientHostnameVerification",
            "ssl.crl",
            "ssl.ocsp",
            "ssl.quorum.clientHostnameVerification",
            "ssl.quorum.crl",
            "ssl.quorum.ocsp",
        ),
        "false",
    ),
    "ssl.authProvider": "x509",
    "skipACL": "no",
    "snapshot.trust.empty": "false",
    "DigestAuthenticationProvider.enabled": "true",
    "DigestAuthenticationProvider.digestAlg": "sha1",
}
_WORDS: Final = "4lw.commands.whitelist"
#: Key that names the file with the members.
_DYNAMIC: Final = "dynamicConfigFile"
_MEMBERS: Final = ("server.", "group.", "weight.")
#: Known keys, some without effect here; no warning.
_SILENT: Final = frozenset(
    {
        "initLimit",
        "clientPort",
        "clientPortAddress",
        "dataLogDir",
        "autopurge.snapRetainCount",
        "autopurge.purgeInterval",
        "standaloneEnabled",
        "peerType",
        "electionAlg",
        "admin.enableServer",
        "admin.serverPort",
        "admin.serverAddress",
        "serverCnxnFactory",
        "authProvider.1",
        "authProvider.sasl",
        "extendedTypesEnabled",
        "preAllocSize",
        "cnxTimeout",
    }
)


#: key -> (value, place in the form file:line)
_Values = dict[str, tuple[str, str]]


def read_zoo_cfg(path: Path) -> StoreSettings:
    """Return the settings of the file. Raise ConfigError with file and line."""
    return parse_zoo_cfg(path, _read(path))


def parse_zoo_cfg(path: Path, content: str) -> StoreSettings:
    """Return the settings in `content`; names of other files are relative to `path`. Raise ConfigError."""
    values = _parse_lines(path, content)
    if _DYNAMIC in values:
        text, place = values.pop(_DYNAMIC)
        misplaced = [key for key in values if key.startswith(_MEMBERS)]
        if misplaced:
            raise ConfigError(f"{values[misplaced[0]][1]}: {misplaced[0]} must be in the file {text}, named at {place}")
        moved = path.parent / text
        values.update(_parse_lines(moved, _read(moved)))
    return _SettingsReader(path, values).settings()


def _timeout(text: str) -> int:
    """Parse a limit of session timeouts; -1 means the default."""
    return 0 if text == "-1" else int(text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _parse_lines(path: Path, content: str) -> _Values:
    """Return each key with its value and place. Raise ConfigError."""
    if "\0" in content:
        raise ConfigError(f"{path}: has a null byte, so it is not a text file")
    values: _Values = {}
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{path}:{number}: {text!r} is not key=value")
        # System properties of ZooKeeper's JVM may have their prefix.
        name = key.strip().removeprefix("zookeeper.")
        place = f"{path}:{number}"
        before, earlier = values.get(name, (value.strip(), ""))
        if before != value.strip():
            raise ConfigError(f"{place}: {name} has another value at {earlier}; keep one of the two lines")
        values[name] = (value.strip(), place)
    return values


class _SettingsReader:
    def __init__(self, path: Path, values: _Values) -> None:
        self._path = path
        self._values = values
        self._used: set[str] = set()

    def settings(self) -> StoreSettings:
        data_text = self._get("dataDir", "", str)
        if not data_text:
            raise ConfigError(f"{self._path}: dataDir is missing")
        data_dir = Path(data_text)
        try:
            is_zookeepers = (data_dir / _ZOOKEEPERS_DATA).is_dir() and not (data_dir / "meta.json").exists()
        except OSError as error:
            raise ConfigError(f"dataDir {data_dir}: {error.strerror}") from error
        if is_zookeepers:
            raise ConfigError(
                f"{data_dir} holds the data of an Apache ZooKeeper ({_ZOOKEEPERS_DATA}), which this store cannot read;"
                " it would start empty. Choose another dataDir, and copy the znodes while both run"
            )
        servers, observers = self._servers()
        node_id = self._my_id(data_dir, servers)
        tick_ms = self._get("tickTime", 3000, int)
        sync_limit = self._get("syncLimit", 0, int)
        options: dict[str, Any] = {
            "node_id": node_id,
            "data_dir": data_dir,
            **self._client_addresses(servers.get(node_id)),
            "peer_address": self._peer_address(servers.get(node_id)),
            "peers": {i: member.peer for i, member in servers.items()},
            "observers": observers,
            "members": servers,
            "reconfig_enabled": self._flag("reconfigEnabled"),
            "linearizable_reads": self._flag("linearizableReads"),
            "read_only_mode": self._flag("readonlymode.enabled"),
            "znodes_max": self._get("maxZnodes", 0, int),
            "data_bytes_max": self._get("maxDataBytes", 0, int),
            "watches_max": self._get("maxWatches", 1_000_000, int),
            "enforce_quotas": self._flag("enforceQuota"),
            "reap_interval_ms": self._get("znode.container.checkIntervalMs", 60_000, int),
            "admin_address": self._admin_address(),
            "tick_ms": tick_ms,
            "leader_absence_ms": max(2000, sync_limit * tick_ms),
            "session_timeout_min_ms": self._get("minSessionTimeout", 0, _timeout),
            "session_timeout_max_ms": self._get("maxSessionTimeout", 0, _timeout),
            "connections_per_address_max": self._get("maxClientCnxns", 60, int),
            "connections_max": self._get("maxCnxns", 0, int),
            "frame_bytes_max": self._get("jute.maxbuffer", 0xFFFFF, int),
            "sessions_max": self._get("maxSessions", 100_000, int),
            "sessions_per_address_max": self._get("maxSessionsPerAddress", 0, int),
            "output_bytes_max": self._get("maxOutputBytes", 4 << 20, int),
            "connect_timeout_ms": self._get("connectTimeout", 10_000, int),
            "stall_timeout_ms": self._get("stallTimeout", 15_000, int),
            "snapshot_entries": self._get("snapCount", 100_000, int),
        }
        strange: frozenset[str] = frozenset()
        if _WORDS in self._values:
            asked = self._get(_WORDS, frozenset(), parse_words)
            options["words"] = asked & parse_words("*")
            strange = asked - options["words"]
        options["super_digest"] = self._get("DigestAuthenticationProvider.superDigest", "", str)
        # ZooKeeper gets the file as a property of its JVM; files of settings often keep that name.
        jaas = self._path_of("jaasConfig") or self._path_of("java.security.auth.login.config")
        opened: tuple[str, ...] = ()
        if jaas is not None:
            options["sasl_users"] = read_jaas(jaas)
            opened = warn_if_open(jaas) if options["sasl_users"] else ()
        if self._flag("sslQuorum"):
            files = self._tls_files("ssl.quorum.", NEED)
            verify = self._flag("ssl.quorum.hostnameVerification", "true")
            options["peer_tls"] = dataclasses.replace(files, verify_host=verify)
        secret = self._path_of("peerSecretFile")
        if secret is not None:
            options["peer_secret"] = read_peer_secret(secret)
            opened += warn_if_open(secret)
        options["required_schemes"] = self._required_schemes()
        self._check_protections()
        warnings = tuple(
            f"{place}: ignored unknown key {key}"
            for key, (_, place) in self._values.items()
            if key not in self._used and key not in _SILENT
        )
        warnings += tuple(f"{self._values[_WORDS][1]}: ignored unknown word {word!r}" for word in sorted(strange))
        warnings += opened
        try:
            return StoreSettings(**options, warnings=warnings)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from error

    def _get(self, key: str, default: Any, read: Callable[[str], Any]) -> Any:
        self._used.add(key)
        if key not in self._values:
            return default
        text, place = self._values[key]
        try:
            return read(text)
        except ValueError as error:
            raise ConfigError(f"{place}: {key}={text!r} is not a number") from error

    def _check_protections(self) -> None:
        """Raise ConfigError for a protection that is configured but not supported."""
        for key, harmless in _PROTECTIONS.items():
            self._used.add(key)
            text, place = self._values.get(key, (harmless, ""))
            if text.lower().replace("-", "") != harmless:
                raise ConfigError(f"{place}: {key}={text} is not supported and would have no effect; remove it")

    def _required_schemes(self) -> tuple[str, ...]:
        """Return the schemes; a client proves itself in one of them. The older key for SASL wins, as in ZooKeeper."""
        by_sasl, is_enforced = self._flag("sessionRequireClientSASLAuth"), self._flag("enforce.auth.enabled")
        schemes = self._get("enforce.auth.schemes", (), parse_schemes)
        if by_sasl:
            return ("sasl",)
        if is_enforced and not schemes:
            raise ConfigError(f"{self._values['enforce.auth.enabled'][1]}: enforce.auth.schemes is missing")
        return schemes if is_enforced else ()

    def _client_addresses(self, server: MemberAddress | None) -> dict[str, Any]:
        """Return the client addresses, plain and with TLS, and the TLS files, as far as configured."""
        port = self._get("secureClientPort", 0, int)
        host = self._get("secureClientPortAddress", "0.0.0.0", str)
        if not port:
            return {"client_address": self._client_address(server)}
        if not 0 < port < 65536:
            raise ConfigError(f"{self._path}: secureClientPort {port} is not a port")
        has_plain = "clientPort" in self._values or (server is not None and server.client is not None)
        plain = self._client_address(server) if has_plain else (host, port)
        files = self._tls_files("ssl.", self._get("ssl.clientAuth", NEED, str.lower))
        return {"client_address": plain, "secure_client_address": (host, port), "tls": files}

    def _tls_files(self, prefix: str, client_auth: str) -> TlsFiles:
        """Return the key stores that are named by settings with this prefix. As in ZooKeeper, client certificates are
        required by default."""
        stores: dict[str, Any] = {}
        for store, file, secret in (("keyStore", "cert", "key_password"), ("trustStore", "ca", "ca_password")):
            stores[file] = self._path_of(f"{prefix}{store}.location")
            stores[secret] = self._get(f"{prefix}{store}.password", "", str)
            secret_file = self._path_of(f"{prefix}{store}.passwordPath")
            if secret_file is not None:
                stores[secret] = read_secret(secret_file)
        if stores["cert"] is None:
            raise ConfigError(f"{self._path}: {prefix}keyStore.location is missing")
        if client_auth != NONE and stores["ca"] is None:
            raise ConfigError(f"{self._path}: {prefix}trustStore.location is missing; clientAuth is {client_auth}")
        versions = self._choice(f"{prefix}enabledProtocols", parse_versions)
        # The version named here counts unless there is a list.
        only = self._choice(f"{prefix}protocol", parse_versions)
        suites = self._choice(f"{prefix}ciphersuites", parse_suites)
        return TlsFiles(**stores, client_auth=client_auth, versions=versions or only, suites=suites)

    def _choice(self, key: str, parse: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
        """Return allowed versions or cipher suites; () if the key is missing or empty."""
        text = self._get(key, "", str)
        try:
            return parse(text) if text else ()
        except ConfigError as error:
            raise ConfigError(f"{self._values[key][1]}: {key}: {error}") from error

    def _path_of(self, key: str) -> Path | None:
        """Return the file that a key names, relative to this file."""
        text = self._get(key, "", str)
        return self._path.parent / text if text else None

    def _flag(self, key: str, default: str = "false") -> bool:
        """Return a boolean setting."""
        self._used.add(key)
        text, place = self._values.get(key, (default, ""))
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{place}: {key}={text!r} is neither true nor false")
        return text.lower() == "true"

    def _servers(self) -> tuple[Members, frozenset[int]]:
        """Return the server lines, and the ids whose role is observer."""
        servers: Members = {}
        observers: set[int] = set()
        for key, (text, place) in self._values.items():
            name, _, digits = key.partition(".")
            if name != "server":
                continue
            if not digits.isascii() or not digits.isdecimal():
                raise ConfigError(f"{place}: {key}: {digits!r} is not a server id, which is a number")
            self._used.add(key)
            try:
                servers[int(digits)], role = parse_member(int(digits), text)
            except ValueError as error:
                raise ConfigError(f"{place}: {key}: {error}") from error
            if role == OBSERVER:
                observers.add(int(digits))
            if servers[int(digits)].peer[0] in EVERY_ADDRESS:
                raise ConfigError(
                    f"{place}: {key}: other nodes cannot dial this address. Write the host name, as in the files of the"
                    " other nodes; quorumListenOnAllIPs=true listens on all addresses of the machine"
                )
        return servers, frozenset(observers)

    def _peer_address(self, own: MemberAddress | None) -> Address | None:
        """Return the address to listen on for peers. The address in the server line may belong to a NAT device."""
        if own is None:
            return None
        return ("0.0.0.0", own.peer[1]) if self._flag("quorumListenOnAllIPs") else own.peer

    def _my_id(self, data_dir: Path, servers: Members) -> int:
        if not servers:
            return 1
        path = data_dir / "myid"
        try:
            text = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; it must hold this node's id") from error
        if not text.isdecimal():
            raise ConfigError(f"{path}: {text!r} is not a node id")
        if int(text) not in servers:
            raise ConfigError(f"{path}: there is no line server.{text} in {self._path}")
        return int(text)

    def _client_address(self, own: MemberAddress | None) -> Address:
        if own is not None and own.client is not None:
            return own.client
        port = self._get("clientPort", 0, int)
        if not 0 < port < 65536:
            raise ConfigError(f"{self._path}: clientPort is missing or not a port")
        return self._get("clientPortAddress", "0.0.0.0", str), port

    def _admin_address(self) -> Address | None:
        enabled = self._get("admin.enableServer", "true", str).lower() != "false"
        port = self._get("admin.serverPort", 0, int)
        if not enabled or port == 0:
            return None
        return self._get("admin.serverAddress", "127.0.0.1", str), port
