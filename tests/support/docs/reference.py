"""Pages of reference: znodes, limits, options of the commands, configuration of the daemons."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Final

import click

from cli.common.configuration import CLUSTER_KEYS
from cli.common.options import SETTINGS, variable_of
from cli.main import ENTRIES, rk
from coord.client.access_lists import letters
from coord.server.config import zoo_cfg
from coord.server.config.settings import StoreSettings
from master.settings import MasterSettings
from regions.cluster.limits import AssignerConfig, BalancerConfig
from regions.records.znode_table import ZNODES
from regions.records.znodes import Layout
from regionserver.config import ServerSettings
from tests.support.docs.source import GENERATED, Field, constants_of, fields_of, paragraph, table
from tests.support.sources import ROOT

#: Packages with limits that operators may meet, and the headings for them.
_LIMITED: Final = (
    ("coord/wire", "The store: protocol"),
    ("coord/tree", "The store: tree"),
    ("coord/raft", "The store: replication"),
    ("coord/storage", "The store: files"),
    ("coord/server", "The store: node"),
    ("coord/client", "The store's client"),
    ("coord/rpc", "Messages between daemons"),
    ("coord/security", "Identities and certificates"),
    ("coord/http.py", "Admin ports"),
    ("regions", "Regions: records, messages, plans"),
    ("master", "Masters"),
    ("regionserver", "Region servers"),
)
#: Fields that are not settings themselves: log lines, and groups with their own page or section.
_NOT_SET: Final = frozenset({"warnings", "members", "access", "limits", "balancer"})
_LIMIT: Final = re.compile(r"(_MAX|_MIN|_LIMIT)\b|^(MAX|MIN|LIMIT)_")


# --- znodes -----------------------------------------------------------------------------------------------------------


def znodes_page() -> str:
    """Return docs/reference/znodes.md."""
    rows = [
        [
            f"`{one.path}`",
            "ephemeral" if one.is_ephemeral else "persistent",
            f"{one.holds}" + (f" ([fields](#{one.record.__name__.lower()}))" if one.record else ""),
            one.written_by,
            letters(Layout("").server_rights(one.path)),
        ]
        for one in ZNODES
    ]
    lines = [
        "# Znodes of a cluster",
        "",
        GENERATED.format("`regions/records/znode_table.py` and the records that it names"),
        "",
        *paragraph(
            """All paths are below one root (`--root`, `/regionkeeper` by default). Values are JSON, so `zkCli` can read
            them; a field that has its default is left out. `<xx>` is a checksum of the region's id, so that no list of
            children gets long."""
        ),
        "",
        *table(["path", "kind", "holds", "written by", "servers may"], rows),
        "",
        *paragraph(
            """The last column is the line of region servers in the access lists of a secured cluster, `rwcda` as in
            zkCli. Masters may do everything, readers read. Below `/servers` servers also create and delete, below
            `/shared` and `/unassigned/<xx>` they create (`regions/records/znode_table.py`)."""
        ),
    ]
    for record in dict.fromkeys(one.record for one in ZNODES if one.record is not None):
        fields = [
            [f"`{f.name}`", f"`{f.type}`", f"`{f.default}`" if f.default else "", f.comment] for f in fields_of(record)
        ]
        lines += ["", f"## {record.__name__}", "", *table(["field", "type", "default", "meaning"], fields)]
    return "\n".join(lines) + "\n"


# --- limits -----------------------------------------------------------------------------------------------------------


def limits_page() -> str:
    """Return docs/reference/limits.md."""
    lines = [
        "# Limits",
        "",
        GENERATED.format("the constants and settings of the source"),
        "",
        *paragraph(
            """Every limit that has its reason in the source: what the assigner and the balancer allow, and constants of
            each package. What an operator can set is in [configuration.md](configuration.md) and
            [commands.md](commands.md)."""
        ),
        "",
        "## The assigner",
        "",
        "`regions/cluster/limits.py`; the fields of one row share a meaning. Names in `_ms` are milliseconds.",
        "",
        *table(["limit", "default", "meaning"], _grouped(fields_of(AssignerConfig))),
        "",
        "## The balancer",
        "",
        *table(["limit", "default", "meaning"], _grouped(fields_of(BalancerConfig))),
    ]
    for folder, title in _LIMITED:
        rows = []
        for path in modules_of(ROOT / folder):
            for constant in constants_of(path):
                if _LIMIT.search(constant.name) and constant.comment and not constant.name.startswith("_"):
                    module = str(path.relative_to(ROOT))
                    rows.append([f"`{constant.name}`", constant.default, constant.comment, f"`{module}`"])
        if rows:
            lines += ["", f"## {title}", "", *table(["limit", "value", "meaning", "module"], rows)]
    return "\n".join(lines) + "\n"


def modules_of(path: Path) -> list[Path]:
    """Return the modules of a package, or the one module that `path` is."""
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _grouped(fields: list[Field]) -> list[list[str]]:
    """Return one row for each comment, with all fields that follow it."""
    rows: list[list[str]] = []
    for field in fields:
        if field.comment or not rows:
            rows.append([f"`{field.name}`", field.default, field.comment])
        else:
            rows[-1][0] += f", `{field.name}`"
            rows[-1][1] += f"; {field.default}"
    return rows


# --- configuration of the daemons -------------------------------------------------------------------------------------


def configuration_page() -> str:
    """Return docs/reference/configuration.md."""
    lines = [
        "# Configuration of the daemons",
        "",
        GENERATED.format("the settings of the daemons and the options of their commands"),
        "",
        *paragraph(
            """Every setting with its default. Times in `_ms` are milliseconds, in `_s` seconds; sizes are bytes.
            Options that all commands share (`--store`, TLS, credentials) are in
            [commands.md](commands.md#options-of-every-command)."""
        ),
    ]
    keys = _zoo_cfg_keys()
    for title, command, settings, note in (
        ("Store node: `rk coord run`", ["coord", "run"], StoreSettings, "zoo.cfg"),
        ("Master: `rk master run`", ["master", "run"], MasterSettings, ""),
        ("Region server: `rk server run`", ["server", "run"], ServerSettings, ""),
    ):
        options = {param.name: param for param in command_at(command).params if isinstance(param, click.Option)}
        rows = []
        for field in fields_of(settings):
            if field.name in _NOT_SET:
                continue
            option = options.get(field.name)
            meaning = field.comment or (_text(option) if option else "")
            row = [f"`{field.name}`", field.default, _names(option) if option and not option.hidden else ""]
            rows.append([*row, *([f"`{keys[field.name]}`" if field.name in keys else ""] if note else []), meaning])
        header = ["setting", "default", "option", *([note] if note else []), "meaning"]
        lines += ["", f"## {title}", "", f"`{_module_of(settings)}`.", "", *table(header, rows)]
    return "\n".join(lines) + "\n"


def _module_of(cls: type) -> str:
    return str(Path(inspect.getfile(cls)).relative_to(ROOT))


def _zoo_cfg_keys() -> dict[str, str]:
    """Map fields of the settings to the keys of zoo.cfg that set them, from the reader of that file."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(zoo_cfg))):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and value.args:
                name = value.args[0]
                if isinstance(name, ast.Constant) and ast.unparse(value.func) in ("self._get", "self._flag"):
                    found[str(key.value)] = str(name.value)
    return found


# --- commands ---------------------------------------------------------------------------------------------------------


def command_at(path: list[str]) -> click.Command:
    """Return the command of a command line such as ["coord", "run"]."""
    command: click.Command = rk
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None, path
        command = found
    return command


def all_commands(path: list[str] | None = None) -> list[tuple[list[str], click.Command]]:
    """Return every command that does something by itself, with its words, in the order of the help."""
    path = path or []
    command = command_at(path)
    if not isinstance(command, click.Group):
        return [(path, command)]
    names = [entry.name for entry in ENTRIES] if not path else command.list_commands(click.Context(command))
    own = [(path, command)] if command.invoke_without_command and path else []
    return own + [one for name in names for one in all_commands([*path, name])]


def shared_options() -> set[str]:
    """Return the names of the options that every command takes."""
    return {
        "store",
        "masters",
        "cluster_id",
        "data_dir",
        "root",
        "json",
        "context",
        "timeout",
        "help",
        *(_parameter(one[0]) for one in SETTINGS),
    }


def _parameter(option: str) -> str:
    return option.replace("-", "_")


def _names(option: click.Option) -> str:
    """Return the spellings of an option, `--yes/--no` for a switch."""
    names = ", ".join(f"`{name}`" for name in option.opts)
    return names + "".join(f" / `{name}`" for name in option.secondary_opts)


def commands_page() -> str:
    """Return docs/reference/commands.md."""
    lines = [
        "# Commands",
        "",
        GENERATED.format("the commands of `rk`"),
        "",
        "Every command and its options; `rk COMMAND --help` prints the same with examples.",
        "",
        "## Options of every command",
        "",
        "They stand before or after the subcommand. An option beats its environment variable, the variable beats the"
        " [context and the configuration file](../operating.md#configuration).",
        "",
        "Any other option has a variable with the words of its command: `RK_REGION_LIST_LIMIT` is `rk region list"
        " --limit`.",
        "",
    ]
    shared = [param for param in rk.params if isinstance(param, click.Option) and not param.hidden]
    options = [*CLUSTER_KEYS, "context", "timeout", "json", "config-file", *(one[0] for one in SETTINGS)]
    variables = {_parameter(one): variable_of(one) for one in options}
    rows = [
        [_names(p), p.metavar or "", f"`{variables[p.name]}`" if p.name in variables else "", _text(p)] for p in shared
    ]
    lines += table(["option", "value", "variable", "meaning"], rows)
    for path, command in all_commands():
        if command.hidden:
            continue
        context = click.Context(command, info_name=" ".join(["rk", *path]))
        usage = " ".join(["rk", *path, *command.collect_usage_pieces(context)])
        lines += ["", f"## rk {' '.join(path)}", "", f"    {usage}", "", _first_paragraph(command.help or "")]
        own = [
            param
            for param in command.params
            if isinstance(param, click.Option) and not param.hidden and param.name not in shared_options()
        ]
        if own:
            lines += ["", *table(["option", "value", "meaning"], [[_names(p), _takes(p), _text(p)] for p in own])]
    return "\n".join(lines) + "\n"


def _takes(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return " or ".join(f"`{choice}`" for choice in option.type.choices)
    return option.metavar or option.type.name.upper()


def _text(option: click.Option) -> str:
    """Return the help of an option, with the default unless the help names it."""
    text = " ".join((option.help or "").split())
    if option.show_default and option.default is not None and "default" not in text:
        text += f" [default: {option.default}]"
    return text.replace("<", "&lt;")


def _first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n", maxsplit=1)[0].replace("\b", "").split()).replace("<", "&lt;")
