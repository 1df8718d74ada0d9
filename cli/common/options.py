"""Options that every command shares, accepted before or after any subcommand.

`rk --json status`, `rk status --json` and `rk table --json list` are equivalent. Each level of the command line
writes its values into the one `Globals` object of the invocation, so the innermost value wins.

A value comes from the first of these sources that has one:

    1. the option
    2. the environment: RK_STORE for --store
    3. the context in use (RK_CONTEXT, or `rk context use`)
    4. the top of the configuration file (cli/common/configuration.py)
    5. the default

A context belongs to one cluster and is used as a whole or not at all. If an option or a variable names another place
(--store, --masters, --data-dir), the context is ignored, so its credentials reach no other cluster. `--context NAME` on
the command line replaces these options: the environment is ignored, and a second place is an error.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from cli.common.configuration import CLUSTER_KEYS, ConfigFile, read_configuration
from cli.common.errors import CliError, UsageFaultError
from cli.common.waiting import TIMEOUT_MIN_S, remember_timeout
from coord.env import SECONDS_MAX

STORE_VARIABLE: Final = "RK_STORE"
CONTEXT_VARIABLE: Final = "RK_CONTEXT"
JSON_VARIABLE: Final = "RK_JSON"
#: Options that name a cluster's place. Levels are not mixed here: the first level with one of them decides.
PLACES: Final = ("store", "masters", "data-dir")
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
    ("certs-dir", "DIR", "Directory with the credentials that this process proves to daemons and callers."),
    (
        "store-auth",
        f"{_CREDENTIAL}|@DIR",
        "Digest credential for the store's access lists; @DIR: a directory of"
        " credentials, from which each daemon takes what its role proves.",
    ),
    ("store-sasl", _CREDENTIAL, "SASL DIGEST-MD5 credential for the store."),
    ("store-readers", "SCHEME:ID,…", "Identities that may read the znodes that are created with the credential."),
    ("store-servers", "SCHEME:ID,…", "Identities of region servers that have not the masters' credential."),
    ("store-masters", "SCHEME:ID,…", "For such a region server: the masters' identities."),
)

#: Session timeouts of daemons: they have 32 bits on the wire, and the store may grant less.
_SESSION_TIMEOUT_MS: Final = click.IntRange(500, 0x7FFFFFFF)

_Command = TypeVar("_Command", bound=Callable[..., Any])


class NumberRange(click.FloatRange):
    """A number within limits. click's own type accepts `inf`, and `nan`, which is neither below nor above any limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value as a float."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


#: A number of seconds.
SECONDS: Final = NumberRange(0, SECONDS_MAX)


def wait_option(default_s: float) -> Callable[[_Command], _Command]:
    """Return the option --wait: the seconds for which a command waits for the result of its request."""
    return click.option(
        "--wait",
        "wait_s",
        type=SECONDS,
        default=default_s,
        show_default=True,
        help="Seconds to wait.",
    )


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
        self.context: str | None = None
        self.config_file: str | None = None
        self.json: bool = False
        #: The place that a topology file gave (--topology): `data_dir`, or `store`.
        self.topology: dict[str, str] = {}
        #: Given values of SETTINGS, by option.
        self.store_settings: dict[str, str] = {}
        #: False for daemons, which ignore contexts and the top of the file.
        self.uses_file = True
        #: False for `rk up` and drills, which work on this machine's cluster: only contexts with a data-dir count.
        self.uses_remote_context = True
        self._configuration: ConfigFile | None = None

    @property
    def configuration(self) -> ConfigFile:
        """Return the decoded configuration file. Raise CliError."""
        if self._configuration is None:
            self.configure(None)
        assert self._configuration is not None
        return self._configuration

    def configure(self, commands: click.Group | None) -> ConfigFile:
        """Read the configuration file and check the tables of `commands`. Raise CliError with file and key."""
        found = read_configuration(self.config_file, [one[0] for one in SETTINGS], commands)
        self._configuration = found
        return found

    def context_in_use(self) -> str:
        """Return the name of the context of --context, RK_CONTEXT or the file; "" for none."""
        return self.context or os.environ.get(CONTEXT_VARIABLE) or self.configuration.context

    @property
    def data_path(self) -> Path:
        """Return the local cluster's directory as an absolute path."""
        self._check_places()
        given = self._value("data-dir") or DEFAULT_DATA_DIR
        return Path(given).expanduser().absolute()

    @property
    def is_root_named(self) -> bool:
        """Return True if an option, a context or the file names the root."""
        return bool(self.root or self._configured().get("root"))

    @property
    def root_path(self) -> str:
        """Return the root znode of the cluster, without a trailing slash."""
        given = self._value("root") or DEFAULT_ROOT
        root = given.rstrip("/")
        if not root.startswith("/"):
            raise UsageFaultError(
                f"--root {given!r} is not a znode path",
                "Give a path that begins with a slash, such as /regionkeeper.",
            )
        return root

    def explicit_store(self) -> str | None:
        """Return the store of --store, RK_STORE, context or file as `host:port,…`; None if only --data-dir determines
        it.

        A given --data-dir overrides RK_STORE, as every option overrides the environment.
        """
        given = self._place("store")
        return parse_hosts(given) if given else None

    def master_addresses(self) -> list[str]:
        """Return the masters from --masters, RK_MASTERS, the context or the configuration file.

        Return [] if none of them names masters: then the store has the addresses. Raise UsageFaultError.
        """
        given = self._place("masters")
        return [] if not given else parse_addresses(given, "master", "--masters 127.0.0.1:21831,127.0.0.1:21832")

    def cluster_named(self) -> str:
        """Return the cluster id of --cluster-id, RK_CLUSTER_ID, context or file, or ""."""
        return self._value("cluster-id") or ""

    def settings(self) -> dict[str, str]:
        """Return the settings of the store's connection (SETTINGS) that have a value, by option."""
        found = {option: self._value(option) for option, _, _ in SETTINGS}
        return {option: value for option, value in found.items() if value}

    def names_store_credential(self) -> bool:
        """Return True if a credential for the store is given, which masters, servers and commands then share."""
        return not {"store-auth", "store-sasl"}.isdisjoint(self.settings())

    def given_values(self) -> dict[str, str]:
        """Return the shared options of this command line, by option."""
        options = (*CLUSTER_KEYS, *(one[0] for one in SETTINGS))
        return {option: value for option in options if (value := self._given(option))}

    def _given(self, option: str) -> str | None:
        if option in CLUSTER_KEYS:
            value: str | None = getattr(self, option.replace("-", "_"))
            return value
        return self.store_settings.get(option)

    def _environment(self, option: str) -> str | None:
        return None if self.context else os.environ.get(variable_of(option))

    def _check_places(self) -> None:
        for one in (*PLACES, "context") if self.topology else ():
            name = one.replace("-", "_")
            if getattr(self, name) != self.topology.get(name):
                raise UsageFaultError(f"--topology and --{one} name two clusters", "Give one of the two.")
        named = [one for one in PLACES if self._given(one)]
        if self.context and named:
            raise UsageFaultError(
                f"--context {self.context} and --{named[0]} name two clusters", "Give one of the two."
            )

    def _value(self, option: str) -> str | None:
        return self._given(option) or self._environment(option) or self._configured().get(option)

    def _place(self, option: str) -> str | None:
        self._check_places()
        known = self._environment(option) if self.data_dir is None else None
        return self._given(option) or known or self._configured().get(option)

    def _configured(self) -> dict[str, str]:
        """Return the values that apply, of the context in use and of the top of the file."""
        if not self.uses_file:
            return {}
        elsewhere = any(self._given(one) or self._environment(one) for one in PLACES)
        name = self.context_in_use()
        context = {} if elsewhere or not name else dict(self.configuration.values_of(name))
        file = dict(self.configuration.values)
        if not self.uses_remote_context:
            if "data-dir" not in context:
                context = {}
            file = {key: value for key, value in file.items() if key in ("data-dir", "root")}
        if elsewhere or any(one in context for one in PLACES):
            file = {key: value for key, value in file.items() if key not in PLACES}
        return file | context

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
        return click.option(
            *names,
            metavar=metavar,
            expose_value=False,
            callback=_remember_setting,
            allow_from_autoenv=False,
            help=text,
        )

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


def complete_contexts(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str | CompletionItem]:
    """Complete the name of a context of the configuration file, for the shell."""
    try:
        return [one for one in sorted(globals_of(context).configuration.contexts) if one.startswith(incomplete)]
    except CliError:
        return []


def globals_of(context: click.Context) -> Globals:
    """Return the shared options of a line that the shell completes. Only a run of `rk` reads --config-file itself."""
    found = context.ensure_object(Globals)
    if found.config_file is None:
        found.config_file = context.find_root().params.get("config_file")
    return found


def _remember_topology(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:  # imported by name, because topologies are above the code that all commands share
        importlib.import_module("cli.topology.load").apply(context.ensure_object(Globals), value)


def global_options(command: _Command) -> _Command:
    """Add the shared options to a command or group; the command reads them with `@click.pass_obj`."""
    masters = click.option("--masters", metavar="HOST:PORT,…", expose_value=False, callback=_remember,
                           allow_from_autoenv=False,
                           help="Master addresses. Default: RK_MASTERS, or the masters in the store.")  # fmt: skip
    context = click.option("--context", metavar="NAME", expose_value=False, callback=_remember,
                           allow_from_autoenv=False, shell_complete=complete_contexts,
                           help="Context of the configuration file that names the cluster. Default: RK_CONTEXT, or the"
                                " context of `rk context use`.")  # fmt: skip
    cluster = click.option("--cluster-id", metavar="ID", expose_value=False, callback=_remember,
                           allow_from_autoenv=False,
                           help="The intended cluster; masters of another cluster reject the request. Default:"
                                " RK_CLUSTER_ID, or the store's cluster.")  # fmt: skip
    topology = click.option("--topology", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                            expose_value=False, callback=_remember_topology, allow_from_autoenv=False,
                            help="Topology file of the cluster, in place of --store or --data-dir.")  # fmt: skip
    return topology(masters(cluster(context(own_masters_options(command)))))


def timeout_option(command: _Command) -> _Command:
    """Add --timeout, the deadline of a command's waits; `cli.common.waiting.limit_s` returns the rest."""
    decorate = click.option("--timeout", type=NumberRange(TIMEOUT_MIN_S, SECONDS_MAX), metavar="SECONDS",
                            expose_value=False, callback=remember_timeout,
                            help="Give up when the command has waited so long for store, masters and servers; long"
                                 " work, such as a load, counts each wait. Default: 10 to 15, 6 for status, 2 for"
                                 " health.")  # fmt: skip
    return decorate(command)


def given_before(context: click.Context, parameter: click.Parameter, value: object) -> object:
    """Return the value of a daemon's option that was given before the subcommand, else `value`.

    Without this, a variable would override an option before the subcommand. A daemon uses no context, because the
    settings of one cluster in an operator's file must not reach a daemon of another cluster.
    """
    known = context.ensure_object(Globals)
    known.uses_file = False
    if known.context:
        raise UsageFaultError("--context is not for daemons", "Give --store, and options as in `rk context list`.")
    assert parameter.name is not None
    before = getattr(known, parameter.name)
    if before is None or context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
        return value
    return parameter.type_cast_value(context, before)


def _chosen_log(_context: click.Context, parameter: click.Parameter, value: str) -> None:
    from coord import logs  # imports Twisted: not for `rk --help`

    logs.choose(**{"level" if parameter.name == "log_level" else "form": value})


def log_options(command: _Command) -> _Command:
    """Add the options of a daemon's log to the command that runs it."""
    decorators = (
        click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
                     envvar="RK_LOG_FORMAT", expose_value=False, callback=_chosen_log,
                     help="Form of the log's lines. RK_LOG_FORMAT sets it for all daemons."),
        click.option("--log-level", type=click.Choice(["debug", "info", "warn", "error"]), default="info",
                     show_default=True, envvar="RK_LOG_LEVEL", expose_value=False, callback=_chosen_log,
                     help="Least level that is logged; `rk log-level` changes it while the daemon runs."),
    )  # fmt: skip
    return apply_options(command, decorators)


def daemon_options(*, data_dir: str, silence: str) -> Callable[[_Command], _Command]:
    """Add the options that masters and region servers share to the command that runs one.

    `data_dir` describes the directory, `silence` the effect of the session's end.
    """

    def decorated(command: _Command) -> _Command:
        decorators = (
            click.option("--store", required=True, envvar=STORE_VARIABLE, metavar="HOST:PORT,…", callback=given_before,
                         help="Client addresses of the store."),
            click.option("--data-dir", required=True, type=click.Path(path_type=Path), metavar="DIR",
                         callback=given_before, help=data_dir),
            click.option("--root", default=DEFAULT_ROOT, show_default=True, callback=given_before,
                         help="Znode below which the cluster lives."),
            click.option("--session-timeout-ms", type=_SESSION_TIMEOUT_MS, default=3000, show_default=True,
                         help=f"Silence after which {silence}."),
            log_options,
            access_options,
            click.option("--insecure", is_flag=True,
                         help="Serve everybody, also on an address that other machines reach."),
        )  # fmt: skip
        return apply_options(command, decorators)

    return decorated


def json_option(command: _Command) -> _Command:
    """Add --json alone, for a command that defines the other options itself."""
    decorate = click.option("--json", "json", is_flag=True, expose_value=False, callback=_remember,
                            allow_from_autoenv=False,
                            help="Print JSON instead of tables.")  # fmt: skip
    return decorate(command)


html_option = click.option(
    "--html",
    "html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the report as a page into this file.",
)


def own_masters_options(command: _Command) -> _Command:
    """Add the shared options except `--masters`, which has another meaning in commands that start masters."""
    command = access_options(command)
    decorators = (
        click.option("--store", metavar="HOST:PORT,…", expose_value=False, callback=_remember, allow_from_autoenv=False,
                     help="Addresses of the store. Default: RK_STORE, or the local cluster in --data-dir."),
        click.option("--data-dir", metavar="DIR", expose_value=False, callback=_remember, allow_from_autoenv=False,
                     help=f"Directory of a local cluster. Default: RK_DATA_DIR, or {DEFAULT_DATA_DIR}."),
        click.option("--root", metavar="PATH", expose_value=False, callback=_remember, allow_from_autoenv=False,
                     help=f"Znode below which the cluster lives. Default: RK_ROOT, or {DEFAULT_ROOT}."),
        timeout_option,
        json_option,
    )  # fmt: skip
    return apply_options(command, decorators)
