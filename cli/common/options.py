"""The options every command shares, accepted before or after any subcommand.

`rk --json status`, `rk status --json` and `rk table --json list` mean the same: each level of the command line writes
what it was given into the one `Globals` object of the invocation, so the innermost value wins. The environment is
looked at last, in `Globals.explicit_store`: RK_STORE must not beat a `--store` given before the subcommand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from cli.common.errors import UsageFaultError

STORE_VARIABLE: Final = "RK_STORE"
MASTERS_VARIABLE: Final = "RK_MASTERS"
CLUSTER_VARIABLE: Final = "RK_CLUSTER_ID"
DEFAULT_DATA_DIR: Final = "./rk-data"
DEFAULT_ROOT: Final = "/regionkeeper"

#: Spelling of a store that `rk up` does not run itself: Apache ZooKeeper, or another cluster's store.
OUTSIDE_PREFIX: Final = "zk://"

_CREDENTIAL: Final = "USER:PASSWORD|@FILE"
#: How to get into the store (cli/common/access.py): option, what it takes, what it is for.
SETTINGS: Final = (
    ("store-tls-ca", "PEM", "Connect to the store by TLS; this is who issued its certificate."),
    ("store-tls-cert", "PEM", "The certificate to show the store, if it asks for one."),
    ("store-tls-key", "PEM", "Its key, if that is not in the same file."),
    ("store-tls-host-check", "yes|no", "Whether the store's certificate must name the host.  [default: yes]"),
    ("store-auth", _CREDENTIAL, "Digest credential for the store's access lists."),
    ("store-sasl", _CREDENTIAL, "SASL DIGEST-MD5 credential for the store."),
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def variable_of(option: str) -> str:
    """The environment variable of an option: RK_STORE_AUTH of store-auth."""
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
        #: Given settings of SETTINGS, by option.
        self.store_settings: dict[str, str] = {}

    @property
    def data_path(self) -> Path:
        """The local cluster's directory, absolute."""
        return Path(self.data_dir or DEFAULT_DATA_DIR).expanduser().absolute()

    @property
    def root_path(self) -> str:
        """The znode below which the cluster lives, without a trailing slash."""
        root = (self.root or DEFAULT_ROOT).rstrip("/")
        if not root.startswith("/"):
            raise UsageFaultError(
                f"--root {self.root!r} is no znode path", "Give a path that begins with a slash, as /regionkeeper."
            )
        return root

    def explicit_store(self) -> str | None:
        """The store named by --store or RK_STORE as `host:port,…`; None when only --data-dir can tell.

        A --data-dir that was given beats RK_STORE, as any option beats the environment.
        """
        given = self.store or (os.environ.get(STORE_VARIABLE) if self.data_dir is None else None)
        return parse_hosts(given) if given else None

    def master_addresses(self) -> list[str]:
        """The masters named by --masters or RK_MASTERS; none: they are found by the store. Raises UsageFaultError."""
        given = self.masters or (os.environ.get(MASTERS_VARIABLE) if self.data_dir is None else None)
        return [] if not given else parse_addresses(given, "master", "--masters 127.0.0.1:21831,127.0.0.1:21832")

    def cluster_named(self) -> str:
        """The id of the cluster named by --cluster-id or RK_CLUSTER_ID, "" for neither."""
        return self.cluster_id or os.environ.get(CLUSTER_VARIABLE, "")

    def for_daemons(self) -> dict[str, object]:
        """The given values as defaults of `rk coord|master|server run`, which declare these options themselves."""
        values = {"store": self.store, "data_dir": self.data_dir, "root": self.root}
        return {name: value for name, value in values.items() if value is not None}


def parse_hosts(text: str) -> str:
    """`zk://a:1,b:2` or `a:1,b:2` as `a:1,b:2`; raises UsageFaultError that names the part that is wrong."""
    hosts = text.removeprefix(OUTSIDE_PREFIX).strip().rstrip("/")
    return ",".join(parse_addresses(hosts, "store", "--store 127.0.0.1:21801,127.0.0.1:21802"))


def parse_addresses(text: str, what: str, example: str) -> list[str]:
    """`a:1,b:2` as its parts; raises UsageFaultError that names the part that is wrong."""
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


def access_options(command: _Command) -> _Command:
    """Let a command accept the settings of SETTINGS; `Globals.access` has what they say."""
    for option, takes, text in reversed(SETTINGS):
        also = ["--auth"] if option == "store-auth" else []
        names = [f"--{option}", *also, option.replace("-", "_")]
        decorate = click.option(*names, metavar=takes, expose_value=False, callback=_remember_setting, help=text)
        command = decorate(command)
    return command


def _checked_spark(_context: click.Context, parameter: click.Parameter, value: object) -> object:
    from regions.plan.spark.target import BadTarget, parse_conf, parse_target  # brings NumPy: not for `rk --help`

    try:
        if isinstance(value, str):
            parse_target(value)
        elif isinstance(value, tuple):
            parse_conf(value)
    except BadTarget as error:
        raise click.BadParameter(str(error), param=parameter) from error
    return value


def spark_options(purpose: str, default: str | None = "local[*]") -> Callable[[_Command], _Command]:
    """Let a command accept --spark-master and --spark-conf; `purpose` ends the sentence that explains them."""

    def decorated(command: _Command) -> _Command:
        command = click.option(
            "--spark-conf",
            multiple=True,
            metavar="NAME=VALUE",
            callback=_checked_spark,
            help="A setting of Spark, as spark.executor.memory=4g; may be given again.",
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
    """Let a command or group accept the shared options; the command itself takes `@click.pass_obj` to read them."""
    masters = click.option("--masters", metavar="HOST:PORT,…", expose_value=False, callback=_remember,
                           help="The masters' addresses. Else RK_MASTERS, else the store knows them.")  # fmt: skip
    cluster = click.option("--cluster-id", metavar="ID", expose_value=False, callback=_remember,
                           help="The cluster that is meant; masters of another refuse. Else RK_CLUSTER_ID, else the"
                                " store's.")  # fmt: skip
    return masters(cluster(own_masters_options(command)))


def daemon_options(*, data_dir: str, silence: str) -> Callable[[_Command], _Command]:
    """Let the command that runs a master or a region server accept what both need.

    `data_dir` says what the directory holds, `silence` what the end of the session costs.
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
        for decorate in reversed(decorators):
            command = decorate(command)
        return command

    return decorated


def json_option(command: _Command) -> _Command:
    """The shared option --json alone, for a command whose other options mean something of its own."""
    decorate = click.option("--json", "json", is_flag=True, expose_value=False, callback=_remember,
                            help="Print JSON instead of tables.")  # fmt: skip
    return decorate(command)


def own_masters_options(command: _Command) -> _Command:
    """The shared options but for `--masters`, which means something else to those who start masters."""
    command = access_options(command)
    decorators = (
        click.option("--store", metavar="HOST:PORT,…", expose_value=False, callback=_remember,
                     help="The store's addresses. Else RK_STORE, else the local cluster in --data-dir."),
        click.option("--data-dir", metavar="DIR", expose_value=False, callback=_remember,
                     help=f"Directory of a local cluster.  [default: {DEFAULT_DATA_DIR}]"),
        click.option("--root", metavar="PATH", expose_value=False, callback=_remember,
                     help=f"Znode below which the cluster lives.  [default: {DEFAULT_ROOT}]"),
        json_option,
    )  # fmt: skip
    for decorate in reversed(decorators):
        command = decorate(command)
    return command
