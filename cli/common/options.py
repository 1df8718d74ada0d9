"""Options that every command shares, accepted before or after any subcommand.

`rk --json status`, `rk status --json` and `rk table --json list` are equivalent. Each level of the command line
writes its values into the one `Globals` object of the invocation, so the innermost value wins. The environment is read
last, in `Globals.explicit_store`: RK_STORE must not override a `--store` given before the subcommand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from cli.common.errors import UsageFaultError

STORE_VARIABLE: Final = "RK_STORE"
MASTERS_VARIABLE: Final = "RK_MASTERS"
CLUSTER_VARIABLE: Final = "RK_CLUSTER_ID"
DATA_DIR_VARIABLE: Final = "RK_DATA_DIR"
ROOT_VARIABLE: Final = "RK_ROOT"
DEFAULT_DATA_DIR: Final = "./rk-data"
DEFAULT_ROOT: Final = "/regionkeeper"

#: Prefix of a store that `rk up` does not run itself: Apache ZooKeeper, or another cluster's store.
OUTSIDE_PREFIX: Final = "zk://"

_CREDENTIAL: Final = "USER:PASSWORD|@FILE"
#: Connection settings for the store (cli/common/access.py): option, metavar, help.
SETTINGS: Final = (
    ("store-tls-ca", "PEM", "Connect to the store with TLS; file with the authority that issued its certificate."),
    ("store-tls-cert", "PEM", "Client certificate, if the store requires one."),
    ("store-tls-key", "PEM", "Key of the client certificate, if it is in another file."),
    ("store-tls-host-check", "yes|no", "Whether the store's certificate must name the host.  [default: yes]"),
    ("store-auth", _CREDENTIAL, "Digest credential for the store's access lists."),
    ("store-sasl", _CREDENTIAL, "SASL DIGEST-MD5 credential for the store."),
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def variable_of(option: str) -> str:
    """Return the environment variable of an option: RK_STORE_AUTH for store-auth."""
    return "RK_" + option.replace("-", "_").upper()


class Globals:
    """Values of the shared options; None for an option that was not given."""

    def __init__(self) -> None:
        self.store: str | None = None
        self.masters: str | None = None
        self.cluster_id: str | None = None
        self.data_dir: str | None = None
        self.root: str | None = None
        self.json: bool = False
        #: Given values of SETTINGS, by option.
        self.store_settings: dict[str, str] = {}

    @property
    def data_path(self) -> Path:
        """Return the local cluster's directory as an absolute path."""
        given = self.data_dir or os.environ.get(DATA_DIR_VARIABLE) or DEFAULT_DATA_DIR
        return Path(given).expanduser().absolute()

    @property
    def root_path(self) -> str:
        """Return the root znode of the cluster, without a trailing slash."""
        given = self.root or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT
        root = given.rstrip("/")
        if not root.startswith("/"):
            raise UsageFaultError(
                f"--root {given!r} is not a znode path",
                "Give a path that begins with a slash, such as /regionkeeper.",
            )
        return root

    def explicit_store(self) -> str | None:
        """Return the store of --store or RK_STORE as `host:port,…`; None if only --data-dir determines it.

        A given --data-dir overrides RK_STORE, as every option overrides the environment.
        """
        given = self.store or (os.environ.get(STORE_VARIABLE) if self.data_dir is None else None)
        return parse_hosts(given) if given else None

    def master_addresses(self) -> list[str]:
        """Return the masters of --masters or RK_MASTERS; []: the store knows them. Raise UsageFaultError."""
        given = self.masters or (os.environ.get(MASTERS_VARIABLE) if self.data_dir is None else None)
        return [] if not given else parse_addresses(given, "master", "--masters 127.0.0.1:21831,127.0.0.1:21832")

    def cluster_named(self) -> str:
        """Return the cluster id of --cluster-id or RK_CLUSTER_ID, or ""."""
        return self.cluster_id or os.environ.get(CLUSTER_VARIABLE, "")

    def for_daemons(self) -> dict[str, object]:
        """Return the given values as defaults of `rk coord|master|server run`, which declare these options
        themselves."""
        values = {"store": self.store, "data_dir": self.data_dir, "root": self.root}
        return {name: value for name, value in values.items() if value is not None}


def parse_hosts(text: str) -> str:
    """Return `zk://a:1,b:2` or `a:1,b:2` as `a:1,b:2`. Raise UsageFaultError that names the wrong part."""
    hosts = text.removeprefix(OUTSIDE_PREFIX).strip().rstrip("/")
    return ",".join(parse_addresses(hosts, "store", "--store 127.0.0.1:21801,127.0.0.1:21802"))


def parse_addresses(text: str, what: str, example: str) -> list[str]:
    """Return the parts of `a:1,b:2`. Raise UsageFaultError that names the wrong part."""
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
            raise UsageFaultError(f"{what} address {part!r} is not host:port", f"Write it as {example}.")
    return [part.strip() for part in text.split(",")]


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is None or value is False:
        return
    assert parameter.name is not None
    setattr(context.ensure_object(Globals), parameter.name, value)


def _remember_setting(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        assert parameter.name is not None
        context.ensure_object(Globals).store_settings[parameter.name.replace("_", "-")] = value


def apply_options(command: _Command, decorators: Iterable[Callable[[Any], Any]]) -> _Command:
    """Return `command` with options in the order of `decorators`, which is their order in the help text."""
    for decorate in reversed(list(decorators)):
        command = decorate(command)
    return command


def access_options(command: _Command) -> _Command:
    """Add the options of SETTINGS to a command; `cli.common.access.store_access` reads them."""

    def option(name: str, metavar: str, text: str) -> Callable[[Any], Any]:
        names = [f"--{name}", *(["--auth"] if name == "store-auth" else []), name.replace("-", "_")]
        return click.option(*names, metavar=metavar, expose_value=False, callback=_remember_setting, help=text)

    return apply_options(command, [option(*setting) for setting in SETTINGS])


def _checked_spark(_context: click.Context, parameter: click.Parameter, value: object) -> object:
    from regions.plan.spark.target import BadTarget, parse_conf, parse_target  # imports NumPy: not for `rk --help`

    try:
        if isinstance(value, str):
            parse_target(value)
        elif isinstance(value, tuple):
            parse_conf(value)
    except BadTarget as error:
        raise click.BadParameter(str(error), param=parameter) from error
    return value


def spark_options(purpose: str, default: str | None = "local[*]") -> Callable[[_Command], _Command]:
    """Add --spark-master and --spark-conf to a command; `purpose` completes the help text."""

    def decorated(command: _Command) -> _Command:
        command = click.option(
            "--spark-conf",
            multiple=True,
            metavar="NAME=VALUE",
            callback=_checked_spark,
            help="Spark setting, such as spark.executor.memory=4g; may be repeated.",
        )(command)
        return click.option(
            "--spark-master",
            default=default,
            show_default=default is not None,
            metavar="URL",
            callback=_checked_spark,
            help=f"Spark {purpose}: local[*], spark://HOST:PORT, yarn, k8s://https://HOST:PORT, sc://HOST:PORT.",
        )(command)

    return decorated


def global_options(command: _Command) -> _Command:
    """Add the shared options to a command or group; the command reads them with `@click.pass_obj`."""
    masters = click.option("--masters", metavar="HOST:PORT,…", expose_value=False, callback=_remember,
                           help="Master addresses. Default: RK_MASTERS, or the masters in the store.")  # fmt: skip
    cluster = click.option("--cluster-id", metavar="ID", expose_value=False, callback=_remember,
                           help="The intended cluster; masters of another cluster reject the request. Default:"
                                " RK_CLUSTER_ID, or the store's cluster.")  # fmt: skip
    return masters(cluster(own_masters_options(command)))


def daemon_options(*, data_dir: str, silence: str) -> Callable[[_Command], _Command]:
    """Add the options that masters and region servers share to the command that runs one.

    `data_dir` describes the directory, `silence` the effect of the session's end.
    """

    def decorated(command: _Command) -> _Command:
        decorators = (
            click.option("--store", required=True, envvar=STORE_VARIABLE, metavar="HOST:PORT,…",
                         help="Client addresses of the store."),
            click.option("--data-dir", required=True, type=click.Path(path_type=Path), metavar="DIR", help=data_dir),
            click.option("--root", default=DEFAULT_ROOT, show_default=True,
                         help="Znode below which the cluster lives."),
            click.option("--session-timeout-ms", default=3000, show_default=True,
                         help=f"Silence after which {silence}."),
            access_options,
        )  # fmt: skip
        return apply_options(command, decorators)

    return decorated


def json_option(command: _Command) -> _Command:
    """Add --json alone, for a command that defines the other options itself."""
    decorate = click.option("--json", "json", is_flag=True, expose_value=False, callback=_remember,
                            help="Print JSON instead of tables.")  # fmt: skip
    return decorate(command)


def own_masters_options(command: _Command) -> _Command:
    """Add the shared options except `--masters`, which has another meaning in commands that start masters."""
    command = access_options(command)
    decorators = (
        click.option("--store", metavar="HOST:PORT,…", expose_value=False, callback=_remember,
                     help="Addresses of the store. Default: RK_STORE, or the local cluster in --data-dir."),
        click.option("--data-dir", metavar="DIR", expose_value=False, callback=_remember,
                     help=f"Directory of a local cluster. Default: RK_DATA_DIR, or {DEFAULT_DATA_DIR}."),
        click.option("--root", metavar="PATH", expose_value=False, callback=_remember,
                     help=f"Znode below which the cluster lives. Default: RK_ROOT, or {DEFAULT_ROOT}."),
        json_option,
    )  # fmt: skip
    return apply_options(command, decorators)
