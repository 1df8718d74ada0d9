"""Access of commands and daemons to the store: settings for TLS, digest credentials and SASL, probes, kazoo's session.

Every setting (`cli.common.options.SETTINGS`) is an option `--store-NAME` and a variable RK_STORE_NAME, with the same
meaning for every command and daemon that connects to a store. A credential is `USER:PASSWORD`, or `@FILE` with the
credential in the file's first line, because `ps` shows command lines to every user. An option overrides its variable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.client
import importlib.util
import logging
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException
from kazoo.security import ACL, Id

from cli.common.errors import CliError, UnreachableError, UsageFaultError
from cli.common.local import (
    CERTS_DIR,
    FIRST_USER,
    LocalCluster,
    read_cluster,
    read_super,
    servers_identity,
)
from cli.common.options import SETTINGS, Globals, variable_of
from cli.common.waiting import limit_s, waiting
from coord.client.access import OPEN_ACCESS, READERS, StoreAccess, parse_identities, read_role
from coord.errors import ConfigError, shown_s
from coord.hosts import is_loopback
from coord.security import process
from coord.security.admin import headers
from coord.security.credentials import Credentials, check_private, read_user
from coord.security.process import USER_VARIABLE
from master.client import split_address

P = ParamSpec("P")
T = TypeVar("T")

#: Time limit of a probe of one port.
PROBE_S: Final = 1.0
#: Time limit for a store that accepts connections to open a session.
CONNECT_TIMEOUT_S: Final = 10.0
SESSION_TIMEOUT_S: Final = 10.0
#: Time limit for the end of a session.
CLOSE_S: Final = 1.0
#: Time without a session after which the command looks for the reason.
_FIRST_LOOK_S: Final = 1.5
#: Interval of looks at the findings until then.
_LOOK_S: Final = 0.1
#: kazoo's reconnection to a store that was down, in seconds; by default its pauses double up to a minute.
RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5, "max_jitter": 0.1}
_FILES: Final = frozenset({"certs-dir", "store-tls-ca", "store-tls-cert", "store-tls-key"})
_YES: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def read_access(
    given: Mapping[str, str], environment: Mapping[str, str] | None = None, *, is_server: bool = False
) -> StoreAccess:
    """Return the settings of options (by name, as in SETTINGS) and environment. Raise UsageFaultError naming the
    setting.

    `--store-auth @DIR` takes from a directory of credentials what the role needs (`coord.client.access.read_role`).
    """
    known = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for option, _, _ in SETTINGS:
        value = given.get(option) or known.get(variable_of(option), "")
        if value:
            values[option] = value
    paths = {name: _path(values, f"store-{name.replace('_', '-')}") for name in ("tls_ca", "tls_cert", "tls_key")}
    check = values.get("store-tls-host-check", "yes").lower()
    if check not in _YES:
        raise UsageFaultError(f"{_named('store-tls-host-check')} is yes or no, not {check!r}")
    try:
        directory = role_directory(values)
        role = OPEN_ACCESS if directory is None else read_role(directory, is_server=is_server)
        return StoreAccess(
            **paths,
            verify_host=_YES[check],
            auth=_credential(values, "store-auth") if directory is None else role.auth,
            sasl=_credential(values, "store-sasl"),
            readers=parse_identities(_first_line(values, "store-readers"), "reader") or role.readers,
            servers=parse_identities(_first_line(values, "store-servers"), "server") or role.servers,
            masters=parse_identities(_first_line(values, "store-masters"), "master") or role.masters,
        )
    except ConfigError as error:
        raise UsageFaultError(str(error), f"See {_named('store-tls-ca')} and the options that begin alike.") from error


def role_directory(values: Mapping[str, str]) -> Path | None:
    """Return DIR of `--store-auth @DIR`; None for a credential, and for a file of one."""
    text = values.get("store-auth", "")
    path = Path(text[1:]).expanduser() if text.startswith("@") else None
    return path if path is not None and path.is_dir() else None


def check_exposed(host: str, certs_dir: Path | None, *, insecure: bool) -> None:
    """Raise UsageFaultError for a daemon that other machines reach and that would serve everybody."""
    if insecure or certs_dir is not None or is_loopback(host):
        return
    raise UsageFaultError(
        f"--address {host} can be reached from other machines, and without credentials this daemon serves everybody",
        "Give --certs-dir DIR (`rk certs init` makes it), or --insecure on a network that you trust.",
    )


def store_access(given: Globals, *, is_server: bool = False) -> StoreAccess:
    """Return the connection settings of options, environment, context and file. Raise UsageFaultError."""
    access = read_access(given.settings(), {}, is_server=is_server)
    # A daemon has what its options and its environment name: a cluster in ./rk-data may be another one.
    local = secured_local(given) if given.uses_file else None
    if local is None:
        return access
    servers = access.servers or parse_identities(servers_identity(local, given.data_path), "server")
    if access.has_credential():
        return dataclasses.replace(access, servers=servers)
    auth = read_super(given.data_path)
    if not auth:
        return access
    readers = access.readers or parse_identities("" if local.outside else READERS, "reader")
    return dataclasses.replace(access, auth=auth, readers=readers, servers=servers)


def certs_dir_named(given: Globals) -> Path | None:
    """Return the directory of --certs-dir, RK_CERTS_DIR, context or file; None without one."""
    found = given.settings().get("certs-dir", "")
    return Path(found).expanduser().absolute() if found else None


def credentials_of(given: Globals) -> Credentials | None:
    """Return the user's credentials, None for open connections. Raise UsageFaultError for unusable ones."""
    directory = certs_dir_named(given)
    name = os.environ.get(USER_VARIABLE, "")
    if directory is None:
        directory = _of_local_cluster(given)
        name = name or FIRST_USER
    try:
        return None if directory is None else read_user(directory, name)
    except ConfigError as error:
        raise UsageFaultError(str(error), "`rk certs issue --user NAME --to DIR` makes credentials.") from error


def _of_local_cluster(given: Globals) -> Path | None:
    """Return the directory that `rk up` has made, if the command is for its cluster and the cluster is secured."""
    return local_certs_dir(given) if secured_local(given) is not None else None


def local_certs_dir(given: Globals) -> Path:
    """Return the directory with the credentials of the cluster in --data-dir."""
    local = read_cluster(given.data_path)
    return given.data_path / CERTS_DIR if local is None else local.certs(given.data_path)


def secured_local(given: Globals) -> LocalCluster | None:
    """Return the cluster in --data-dir if the command is for this cluster and the cluster is secured; else None."""
    local = read_cluster(given.data_path)
    if local is None or not local.secured:
        return None
    hosts, masters = given.explicit_store(), given.master_addresses()
    is_other = hosts is not None and hosts != local.store
    is_other |= bool(masters) and not {one.address for one in local.masters}.issuperset(masters)
    return None if is_other else local


def read_admin_page(address: str, path: str, timeout_s: float, bytes_max: int) -> bytes:
    """Return a page of an admin port, requested with this command's token. Raise OSError.

    The request uses no proxy: a proxy would get the token, and does not reach this machine's loopback interface.
    """
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=OPEN_ACCESS.tls_context())
    )
    request = urllib.request.Request(f"{admin_url(address)}{path}", headers=headers(process.own()))
    with direct.open(request, timeout=timeout_s) as answer:
        content: bytes = answer.read(bytes_max)
        return content


def admin_url(address: str) -> str:
    """Return the URL of an admin port of this command's cluster, without a path."""
    return f"{'http' if OPEN_ACCESS.tls_context() is None else 'https'}://{address}"


def admin_connection(host: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to an admin port, which is not open yet."""
    tls = OPEN_ACCESS.tls_context()
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)


def as_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the given options as environment variables for daemons: command lines must not show secrets."""
    return {variable_of(option): as_absolute(option, value) for option, value in given.items() if value}


def kazoo_options(access: StoreAccess) -> dict[str, Any]:
    """Return the arguments of KazooClient. Raise ConfigError."""
    acl = [ACL(line.perms, Id(line.scheme.decode(), line.id.decode())) for line in access.acl()]
    options: dict[str, Any] = {"default_acl": acl, "connection_retry": RECONNECT, **access.kazoo_tls()}
    digests = access.digests()
    if digests:
        options["auth_data"] = [("digest", credential) for credential in digests]
    if access.sasl:
        user, _, password = access.sasl.partition(":")
        if importlib.util.find_spec("puresasl") is None:
            raise ConfigError("SASL needs the Python package pure-sasl, which is not installed: pip install pure-sasl")
        options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
    return options


def connect(address: tuple[str, int], access: StoreAccess, timeout_s: float) -> socket.socket:
    """Return a socket to a node, with TLS if configured. Raise OSError (such as ssl.SSLError), ConfigError."""
    context = access.tls_context()
    plain = socket.create_connection(address, timeout=timeout_s)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=address[0])
    except BaseException:
        plain.close()
        raise


def misfit(address: tuple[str, int], access: StoreAccess, timeout_s: float = PROBE_S) -> tuple[str, str]:
    """Return the obstacle to a connection to this port, and a hint; two empty texts without one."""
    where = f"{address[0]}:{address[1]}"
    try:
        if access.tls_paths() is None:
            if _speaks_tls(address, timeout_s):
                return (
                    f"{where} speaks TLS, but this command does not",
                    f"Give your certificate with {_named('certs-dir')}, or {_named('store-tls-ca')}.",
                )
            if _speaks_http(address, timeout_s):
                return f"{where} is a port for HTTP, not for clients of the store", "Give the client port of the nodes."
            return "", ""
        with connect(address, access, timeout_s) as sock:
            # A server that requires a certificate reports this only after the client's handshake.
            sock.sendall(b"ruok")
            if not sock.recv(1):
                return (
                    f"{where} closed the connection after the TLS handshake",
                    "Is the certificate of this command revoked? An admin sees the list by `rk certs revoked`.",
                )
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(where, error.verify_message, access)
    except ssl.SSLError as error:
        return _of_tls_fault(where, error, access)
    except ConnectionResetError:
        return (
            (f"{where} closed the connection in the TLS handshake", f"Does it want {_named('store-tls-cert')}?")
            if access.tls_paths() is not None
            else ("", "")
        )
    except OSError:
        pass
    return "", ""


def _of_certificate(where: str, why: str, access: StoreAccess) -> tuple[str, str]:
    """Return why a node's certificate is refused, and what to do."""
    hint = "Connect with a name in the certificate, or with --store-tls-host-check no."
    if "mismatch" in why.lower():
        return f"the certificate of {where} names another host: {why}", hint
    if "expired" in why or "not yet valid" in why:
        return f"the certificate of {where} is refused: {why}", "Issue a new one to this node, or correct a clock."
    hint = f"{_named('store-tls-ca' if access.tls_ca else 'certs-dir')} must name the authority that issued it."
    return f"the certificate of {where} was not issued by {(access.tls_paths() or [None])[0]}: {why}", hint


def _of_tls_fault(where: str, error: ssl.SSLError, access: StoreAccess) -> tuple[str, str]:
    reason = (error.reason or str(error)).upper()
    if "WRONG_VERSION" in reason or "UNEXPECTED_EOF" in reason or "RECORD_LAYER" in reason:
        return f"{where} does not speak TLS", "Give the store's secure port, or omit the TLS options."
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"{where} requires a client certificate", f"Give {_named('store-tls-cert')} and its key."
    words = reason.replace("_", " ").lower()
    if "UNKNOWN_CA" in reason or "ALERT" in reason:
        hint = "It must be of an authority that the store trusts, and valid by the store's clock: see `rk certs show`."
        return f"{where} rejected the certificate {(access.tls_paths() or (None, None))[1]}: {words}", hint
    return f"TLS with {where} failed: {words}", ""


def _speaks_tls(address: tuple[str, int], timeout_s: float) -> bool:
    """Return True if the port answers the start of a handshake with TLS. The certificate is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(address, timeout=timeout_s) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _speaks_http(address: tuple[str, int], timeout_s: float) -> bool:
    """Return True if the port answers a request of HTTP, as an admin port does."""
    try:
        with socket.create_connection(address, timeout=timeout_s) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return plain.recv(5) == b"HTTP/"
    except OSError:
        return False


def _named(option: str) -> str:
    return f"--{option} ({variable_of(option)})"


def _path(values: Mapping[str, str], option: str) -> Path | None:
    path = Path(values[option]).expanduser() if option in values else None
    if path is not None and not path.is_file():
        raise UsageFaultError(f"{_named(option)}: file {path} does not exist")
    return path


def _first_line(values: Mapping[str, str], option: str, *, is_secret: bool = False) -> str:
    """Return the value of an option; for `@FILE` the file's first line. Raise UsageFaultError."""
    text = values.get(option, "")
    if not text.startswith("@"):
        return text
    try:
        path = Path(text[1:]).expanduser()
        if is_secret:
            check_private(path)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageFaultError(f"{_named(option)}: cannot read {text[1:]}: {why}") from error
    return lines[0].strip() if lines else ""


def _credential(values: Mapping[str, str], option: str) -> str:
    text = _first_line(values, option, is_secret=True)
    user, colon, password = text.partition(":")
    if option in values and not (user and colon and password):
        what = "neither USER:PASSWORD nor a file with USER:PASSWORD in its first line"
        raise UsageFaultError(f"{_named(option)} is {what}")
    return text


def as_absolute(option: str, value: str) -> str:
    """Return the value of an option with absolute paths: another process may have another working directory."""
    if value.startswith("@"):
        return f"@{Path(value[1:]).expanduser().absolute()}"
    is_path = option in _FILES or option == "data-dir"
    return str(Path(value).expanduser().absolute()) if is_path else value


def silence_of(address: str, timeout_s: float = PROBE_S) -> str:
    """Return in words why a node of the store has not answered."""
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return "accepts connections and does not answer"
    except socket.gaierror as error:
        return f"has a host that cannot be resolved: {error.strerror}"
    except (TimeoutError, BlockingIOError):
        return "does not answer"
    except OSError:
        return "refuses connections"


def is_answering(address: str, timeout_s: float = PROBE_S) -> bool:
    """Return True if the address accepts a TCP connection."""
    with contextlib.suppress(OSError), socket.create_connection(split_address(address), timeout=timeout_s):
        return True
    return False


class NodeAnswer(NamedTuple):
    """A store node's answer to a four-letter word, "" if it does not answer, and the certificate that it presented."""

    text: str
    #: In DER; b"" without TLS.
    certificate: bytes = b""

    @property
    def fields(self) -> dict[str, str]:
        """Return the lines of an answer to `srvr` by name; {} if the node does not answer."""
        lines = (line.partition(":") for line in self.text.splitlines())
        return {name.strip(): value.strip() for name, _, value in lines}


def ask_node(address: str, word: str, timeout_s: float = PROBE_S, access: StoreAccess = OPEN_ACCESS) -> NodeAnswer:
    """Return a store node's answer to a four-letter word."""
    chunks, certificate = [], None
    with (
        contextlib.suppress(OSError, ConfigError),
        connect(split_address(address), access, timeout_s) as connection,
    ):
        if isinstance(connection, ssl.SSLSocket):
            certificate = connection.getpeercert(True)
        connection.settimeout(timeout_s)
        connection.sendall(word.encode())
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    return NodeAnswer(b"".join(chunks).decode(errors="replace"), certificate or b"")


def expiring_of(certificate: bytes, name: str) -> list[str]:
    """Return a sentence if the certificate that the store node `name` has shown soon expires. b"": it has none."""
    if not certificate:
        return []
    # Loads a library that other commands do not need.
    from coord.security.certificate_facts import expiring, facts_of

    (facts,) = facts_of(ssl.DER_cert_to_PEM_cert(certificate).encode())
    return expiring(
        [(f"the certificate of {facts.principal or name}", facts.expires)], datetime.datetime.now(datetime.UTC)
    )


def addresses_of_store(hosts: str) -> list[str]:
    """Return each `host:port` of a store's `host:port,…/chroot`."""
    return [part for part in hosts.partition("/")[0].split(",") if part]


@contextlib.contextmanager
def open_store(
    hosts: str,
    timeout_s: float | None = None,
    access: StoreAccess = OPEN_ACCESS,
    names: Mapping[str, str] | None = None,
) -> Iterator[KazooClient]:
    """Yield a kazoo session with the store, closed on exit. `timeout_s`: by default the rest of --timeout. `names`:
    nodes' names by address.

    Raise UnreachableError if no address accepts a connection or opens a session in time, CliError if `access` does not
    match the store.
    """
    timeout_s = limit_s(CONNECT_TIMEOUT_S) if timeout_s is None else timeout_s
    end_s = time.monotonic() + timeout_s
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # kazoo logs each retry; this function raises its errors
    addresses = addresses_of_store(hosts)
    with waiting(f"the store at {hosts} to accept a connection"):
        if not _accepts_any(addresses, min(PROBE_S, timeout_s)):
            for address in addresses:
                _check_name(address)
            raise UnreachableError(
                f"no store answers at {hosts}",
                "Is the cluster up? `rk up` starts one here; --store or RK_STORE names another.",
            )
    try:
        client = KazooClient(hosts=hosts, timeout=SESSION_TIMEOUT_S, **kazoo_options(access))
        access.tls_context()  # reports errors in the files, which kazoo would retry for ever
    except ConfigError as error:
        raise UsageFaultError(str(error), "Check the --store-tls options or their variables.") from error
    try:
        with waiting(f"the store at {hosts} to open a session; a majority of its nodes must run"):
            _begin_session(client, _Store(hosts, addresses, access, names or {}), timeout_s, end_s)
        yield client
    finally:
        _close(client)


def _accepts_any(addresses: Sequence[str], timeout_s: float) -> bool:
    """Return True as soon as one address accepts a TCP connection."""
    return any(one.result() for one in as_completed([begun(is_answering, one, timeout_s) for one in addresses]))


def begun(ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
    """Send a question on a separate thread. Unlike a pool's thread, it does not delay the end of the process."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask(*arguments, **named))
        except Exception as error:  # the reader of the answer gets it
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _close(client: KazooClient) -> None:
    """End the session. A store that does not answer must not delay the command, because the store expires the session
    anyway."""

    def close() -> None:
        with contextlib.suppress(KazooException):
            client.stop()
            client.close()

    closing = threading.Thread(target=close, daemon=True)
    is_open = client.connected
    closing.start()
    if is_open:
        closing.join(CLOSE_S)


def _check_name(address: str) -> None:
    """Raise UnreachableError if the host of an address has no IP address."""
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise UnreachableError(f"cannot resolve the host {host!r}: {error.strerror}", "Check its name.") from error


@dataclasses.dataclass(frozen=True)
class _Store:
    """The store that a command asks for a session."""

    hosts: str
    addresses: list[str]
    access: StoreAccess
    names: Mapping[str, str]


class _Look:
    """A parallel look at all nodes for obstacles to a session. It runs while kazoo tries to connect."""

    def __init__(self, store: _Store, timeout_s: float) -> None:
        # `misfit` and `answer_of` make two connections each, one after the other: each gets a part of the time.
        probe_s = max(_LOOK_S, min(PROBE_S, timeout_s / 2))
        self._names = store.names
        self._misfits = [begun(misfit, split_address(one), store.access, probe_s) for one in store.addresses]
        self._answers = {one: begun(answer_of, one, probe_s, store.access) for one in store.addresses}

    def check(self) -> None:
        """Raise CliError if a node has shown that `access` does not match the store."""
        for one in self._misfits:
            if one.done() and one.result()[0]:
                raise CliError(*one.result())

    def answers(self) -> list[str]:
        """Return a line with the answer of each node."""
        return [
            f"{self._names.get(address, address)} {answer.result() if answer.done() else 'does not answer'}"
            for address, answer in self._answers.items()
        ]


def answer_of(address: str, timeout_s: float, access: StoreAccess) -> str:
    """Return a node's answer to `srvr` in words."""
    said = ask_node(address, "srvr", timeout_s, access).fields
    if not said:
        return silence_of(address, timeout_s)
    mode = said.get("Mode", "")
    return f"serves as {mode}" if mode else "answers that it does not serve: it knows no leader"


def _begin_session(client: KazooClient, store: _Store, timeout_s: float, end_s: float) -> None:
    """Start the client and look early for obstacles to a session, because kazoo itself only retries."""
    refused: list[str] = []

    def left_s() -> float:
        return max(0.0, end_s - time.monotonic())

    def listen(_: object) -> None:
        # kazoo shows AUTH_FAILED for a moment only, then the state is CLOSED as before the start.
        if client.client_state == "AUTH_FAILED":
            refused.append(client.client_state)

    client.add_listener(listen)
    look = None
    try:
        started = client.start_async()
        started.wait(min(left_s() / 3, _FIRST_LOOK_S))
        if not client.connected and not refused:
            look = _Look(store, left_s())
            while not started.wait(min(left_s(), _LOOK_S)) and left_s() and not refused:
                look.check()
        if store.access.sasl and client.connected:
            # kazoo reports a connection before it has authenticated; the first reply shows the result.
            with contextlib.suppress(KazooException):
                client.sync_async("/").get(timeout=left_s())
        if refused:
            raise AuthFailedError
        if not client.connected:
            lines = [] if look is None else look.answers()
            raise UnreachableError(
                f"the store at {store.hosts} accepts connections but gave no session within {shown_s(timeout_s)} s",
                "\n".join([*lines, "A majority of its nodes must run. `rk health` asks every process."]),
            )
    except AuthFailedError as error:
        raise CliError(
            f"the store at {store.hosts} rejected the credential of --store-sasl or --store-auth",
            "User or password is wrong, or the store has no such users (rk coord run --sasl-users).",
        ) from error
