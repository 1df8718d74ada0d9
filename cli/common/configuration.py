"""The configuration file of `rk`: values of shared options, contexts for several clusters, options of single commands.

    context = "production"               # the context in use; `rk context use` writes this line
    json = false

    [contexts.production]                # shared options of one cluster
    store = "db1:2181,db2:2181,db3:2181"
    store-auth = "@/etc/rk/credential"

    [region.list]                        # options of one command: rk region list
    limit = 100

The file is `--config-file`, RK_CONFIG_FILE, or `config.toml` in the directory of `rk` below XDG_CONFIG_HOME
(`~/.config`). An empty name means no file. Every key must be known: a mistyped key is an error, not a silent default.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import click

from cli.common.errors import NotFoundError, UsageFaultError

FILE_VARIABLE: Final = "RK_CONFIG_FILE"
#: Shared options whose values a file or a context may hold, in addition to those of the store's connection.
CLUSTER_KEYS: Final = ("store", "masters", "cluster-id", "data-dir", "root")
#: Keys of the file that name no shared option and no command.
_CONTEXT: Final = "context"
_CONTEXTS: Final = "contexts"
_JSON: Final = "json"
#: Longest file: hundreds of contexts. Others may have made the file, and a parser takes long for one without end.
FILE_BYTES_MAX: Final = 64 << 10
#: A key with so many dots that no option has it. The parser takes the square of their number: seconds for a whole file.
_DEEP_KEY: Final = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")


class ConfigFile(NamedTuple):
    """The decoded file. `path` is None if there is no file."""

    path: Path | None = None
    #: Name of the context in use; "" for none.
    context: str = ""
    json: bool = False
    #: Shared options at the top of the file.
    values: Mapping[str, str] = {}
    contexts: Mapping[str, Mapping[str, str]] = {}
    #: Options of commands, as click's `default_map` has them.
    commands: Mapping[str, Any] = {}

    def values_of(self, context: str) -> Mapping[str, str]:
        """Return the values of a context. Raise NotFoundError that lists the contexts."""
        if context not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotFoundError(f"no context {context!r} in {self.path or default_file()}", f"Contexts: {known}.")
        return self.contexts[context]


def default_file() -> Path:
    """Return the place of the file without an option or a variable."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "rk" / "config.toml"


def file_named(given: str | None) -> Path | None:
    """Return the configuration file of the option, the variable or the default place; None if it is switched off."""
    named = os.environ.get(FILE_VARIABLE) if given is None else given
    if named is None:
        return default_file()
    return Path(named).expanduser().absolute() if named else None


def read_configuration(given: str | None, settings: Iterable[str], root: click.Group | None = None) -> ConfigFile:
    """Read the file. `settings`: the shared options besides CLUSTER_KEYS. `root`: the commands, to check their tables.

    A named file must exist. Raise UsageFaultError with file and key.
    """
    path = file_named(given)
    if path is None:
        return ConfigFile()
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        if given is None and FILE_VARIABLE not in os.environ:
            return ConfigFile()
        raise UsageFaultError(
            f"configuration file {path} does not exist", "Check --config-file and RK_CONFIG_FILE."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageFaultError(f"cannot read the configuration file {path}: {why}") from error
    if len(content) > FILE_BYTES_MAX:
        raise UsageFaultError(f"the configuration file {path} has more than {FILE_BYTES_MAX} bytes", "Make it shorter.")
    return parse_configuration(path, text, settings, root)


def parse_configuration(path: Path, text: str, settings: Iterable[str], root: click.Group | None = None) -> ConfigFile:
    """Decode a file's text, as `read_configuration` does."""
    import tomllib  # most users have no file

    if _DEEP_KEY.search(text):
        _too_deep(path)
    try:
        found = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise UsageFaultError(f"{path} is not TOML: {error}", "https://toml.io describes the format.") from error
    except RecursionError as error:
        _too_deep(path, error)
    shared = (*CLUSTER_KEYS, *settings)
    context = _text(path, _CONTEXT, found.pop(_CONTEXT, ""))
    as_json = found.pop(_JSON, False)
    if not isinstance(as_json, bool):
        _refuse(path, _JSON, "true or false", as_json)
    contexts = found.pop(_CONTEXTS, {})
    if not isinstance(contexts, dict):
        _refuse(path, _CONTEXTS, "a table of contexts", contexts)
    values = {key: _text(path, key, found.pop(key)) for key in shared if key in found}
    decoded = {name: _context_values(path, name, table, shared) for name, table in contexts.items()}
    if root is not None:
        _check_commands(path, root, found, (), (*shared, _CONTEXT, _CONTEXTS, _JSON))
    return ConfigFile(path, context, as_json, values, decoded, _as_parameters(found))


def _context_values(path: Path, name: str, table: object, shared: tuple[str, ...]) -> dict[str, str]:
    where = f"{_CONTEXTS}.{name}"
    if not isinstance(table, dict):
        _refuse(path, where, "a table", table)
    for key in table:
        if key not in shared:
            _unknown(path, f"{where}.{key}", key, shared)
    return {key: _text(path, f"{where}.{key}", value) for key, value in table.items()}


def _check_commands(
    path: Path, command: click.Command, table: Mapping[str, Any], above: tuple[str, ...], also: tuple[str, ...] = ()
) -> None:
    """Raise UsageFaultError for a key that names neither a subcommand nor an option of `command`."""
    context = click.Context(command, info_name=command.name)
    options = {} if also else options_of(command)
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    for key, value in table.items():
        where = ".".join((*above, key))
        below = command.get_command(context, key) if isinstance(command, click.Group) and key in names else None
        if below is not None:
            if not isinstance(value, dict):
                _refuse(path, where, f"a table with options of `rk {' '.join((*above, key))}`", value)
            _check_commands(path, below, value, (*above, key))
        elif key not in options:
            _unknown(path, where, key, (*also, *names, *options))
        elif isinstance(value, dict) or (isinstance(value, list) and not options[key].multiple):
            _refuse(path, where, "one value", value)


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options that a table of the command may have, by name; shared options stand elsewhere."""
    found = (one for one in command.params if isinstance(one, click.Option))
    return {
        max(one.opts, key=len).lstrip("-"): one
        for one in found
        if one.allow_from_autoenv and one.name not in ("help", "version")
    }


def _as_parameters(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables with the parameters' names, as `default_map` has them. Names of commands stay."""
    return {
        key if isinstance(value, dict) else key.replace("-", "_"): _as_parameters(value)
        if isinstance(value, dict)
        else value
        for key, value in table.items()
    }


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(path, key, "a text", value)
    return value


def _too_deep(path: Path, cause: Exception | None = None) -> NoReturn:
    raise UsageFaultError(f"{path} nests too deeply", "`rk context --help` shows an example.") from cause


def _refuse(path: Path, key: str, wanted: str, value: object) -> NoReturn:
    raise UsageFaultError(
        f"{path}: key {key!r} must be {wanted}, not {value!r}", "`rk context --help` shows an example."
    )


def _unknown(path: Path, where: str, key: str, known: Iterable[str]) -> NoReturn:
    close = difflib.get_close_matches(key, list(known), 1)
    hint = f"Did you mean {close[0]!r}?" if close else "`rk context --help` shows an example."
    raise UsageFaultError(f"{path}: key {where!r} is not known", hint)
