"""`rk context`: clusters by name, kept in the configuration file, whose other lines and comments stay as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cli.common import output
from cli.common.access import as_absolute
from cli.common.configuration import CLUSTER_KEYS, ConfigFile, file_named
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.options import PLACES, SETTINGS, Globals, complete_contexts, global_options
from cli.common.views.help import CommandGroup

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CREDENTIALS: Final = ("store-auth", "store-sasl")


@click.group(cls=CommandGroup)
@global_options
def context() -> None:
    """Clusters by name, kept in the configuration file: ~/.config/rk/config.toml, --config-file or RK_CONFIG_FILE.

    A context holds the shared options of one cluster. `rk context use NAME` chooses one for all following commands,
    RK_CONTEXT for one shell, --context for one command.

    \b
    context = "production"               # written by `rk context use`
    [contexts.production]                # written by `rk context add`
    store = "db1:2181,db2:2181"
    store-auth = "@/etc/rk/credential"   # a file that holds USER:PASSWORD
    [region.list]                        # options of one command
    limit = 100

    A value comes from the option, else from its variable, the context, the top of the file, the default.
    """


@context.command("list")
@global_options
@click.pass_obj
def list_(given: Globals) -> None:
    """Show all contexts; `*` marks the one in use."""
    found = given.configuration
    used = given.context_in_use()
    if given.json:
        payload = [
            {"name": name, "in_use": name == used, "options": dict(found.contexts[name])} for name in _sorted(found)
        ]
        output.print_json(payload)
        return
    rows = [("*" if name == used else "", name, *_row(found.contexts[name])) for name in _sorted(found)]
    nothing = "no contexts yet: rk context add NAME --store HOST:PORT,…"
    output.console().print(output.table("", ["", "context", "place", "other options"], rows) if rows else nothing)
    if used and used not in found.contexts:
        raise NotFoundError(f"the context in use, {used!r}, does not exist", "rk context use NAME chooses another.")


@context.command()
@click.argument("name", shell_complete=complete_contexts, required=False)
@click.option("--none", is_flag=True, help="Use no context from now on.")
@global_options
@click.pass_obj
def use(given: Globals, name: str | None, none: bool) -> None:
    """Use the context NAME in all following commands."""
    if none == (name is not None):
        raise UsageFaultError("give either NAME or --none", "`rk context list` shows the names.")
    if name is not None:
        given.configuration.values_of(name)
    edit_file(given, lambda document: with_context_in_use(document, name))
    text = "commands use no context now" if name is None else f"commands use the context {name} now"
    output.report({"context": name}, text, as_json=given.json)


@context.command()
@click.argument("name")
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
@global_options
@click.pass_obj
def add(given: Globals, name: str, replace: bool) -> None:
    """Keep the shared options of this command line as the context NAME: rk context add dev --store 127.0.0.1:21801."""
    if not NAME.fullmatch(name):
        raise UsageFaultError(f"{name!r} is not a name of a context", "Use letters, digits, - and _; at most 64.")
    values = given.given_values()
    if not any(one in values for one in PLACES):
        raise UsageFaultError("a context needs a place", "Give --store, --masters or --data-dir.")
    for option in _CREDENTIALS:
        if not values.get(option, "@").startswith("@"):
            raise UsageFaultError(
                f"--{option}: a context keeps no password", "Write USER:PASSWORD into a file and give @FILE."
            )
    if name in given.configuration.contexts and not replace:
        raise CliError(f"context {name} exists", "Give --replace, or another name.")
    values = {key: as_absolute(key, value) for key, value in values.items()}

    def added(document: TOMLDocument) -> TOMLDocument:
        import tomlkit

        contexts = document.setdefault("contexts", tomlkit.table(is_super_table=True))
        contexts[name] = values
        return document

    path = edit_file(given, added)
    output.report({"context": name, "options": values}, f"context {name} is in {path}", as_json=given.json)


@context.command()
@click.argument("name", shell_complete=complete_contexts)
@global_options
@click.pass_obj
def remove(given: Globals, name: str) -> None:
    """Remove the context NAME from the file. The cluster stays as it is."""
    given.configuration.values_of(name)
    was_used = given.configuration.context == name

    def removed(document: TOMLDocument) -> TOMLDocument:
        contexts: Any = document["contexts"]
        del contexts[name]
        return with_context_in_use(document, None) if was_used else document

    edit_file(given, removed)
    text = f"removed the context {name}" + ("; commands use no context now" if was_used else "")
    output.report({"removed": name, "was_in_use": was_used}, text, as_json=given.json)


def edit_file(given: Globals, change: Callable[[TOMLDocument], TOMLDocument]) -> Path:
    """Change the document of the file, write the file, and return its path. Raise CliError."""
    import tomlkit  # only these commands write

    path = file_named(given.config_file)
    if path is None:
        raise CliError("there is no configuration file to write", "RK_CONFIG_FILE is empty; unset the variable.")
    place = path.resolve()  # users keep their configurations elsewhere and link to them
    temporary = place.with_name(place.name + ".new")
    try:
        text = place.read_text(encoding="utf-8") if place.exists() else ""
        changed = tomlkit.dumps(change(tomlkit.parse(text)))
        place.parent.mkdir(parents=True, exist_ok=True)
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o600
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(changed)
        temporary.replace(place)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise CliError(f"cannot write {path}: {error.strerror}", "Give another --config-file.") from error
    return path


def with_context_in_use(document: TOMLDocument, name: str | None) -> TOMLDocument:
    """Return the document with the line `context`; a new line is the first one, because below a table it would belong
    to that table."""
    import tomlkit

    if name is None:
        document.pop("context", None)
    elif "context" in document:
        document["context"] = name
    else:
        return tomlkit.parse(f'context = "{name}"\n{tomlkit.dumps(document)}')
    return document


def _sorted(found: ConfigFile) -> list[str]:
    return sorted(found.contexts)


def _row(values: Any) -> tuple[str, str]:
    place = "  ".join(f"{key} {values[key]}" for key in PLACES if key in values)
    others = [key for key in (*CLUSTER_KEYS, *(one[0] for one in SETTINGS)) if key not in PLACES and key in values]
    return place, "  ".join(f"{key} {_shown(key, values[key])}" for key in others)


def _shown(key: str, value: str) -> str:
    """Return a value without a password."""
    return f"{value.partition(':')[0]}:…" if key in _CREDENTIALS and not value.startswith("@") else value
