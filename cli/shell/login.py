"""`rk login`, `rk logout`: keep address and credentials of a cluster, so that later commands need no options.

A login is a context of the configuration file whose credentials are copies of the user's own files, in a directory
beside the configuration file:

    ~/.config/rk/config.toml                   [contexts.production]  store, root, certs-dir
    ~/.config/rk/credentials/production/       user.alice.json, or certificate, key and ca.crt; mode 0700 and 0600
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cli.common import output
from cli.common.access import as_absolute, credentials_of, store_access
from cli.common.asking.store import root_of, store_hosts
from cli.common.configuration import file_named
from cli.common.connect import open_cluster
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.options import Globals, complete_contexts, global_options
from cli.shell.context import NAME, edit_file, with_context_in_use
from coord.errors import ConfigError
from coord.security.credentials import (
    AUTHORITY_FILE,
    CERTIFICATE_SUFFIX,
    EVERY_PORT_FILE,
    Credentials,
    key_file,
)
from coord.security.making import write_private
from regions import messages

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

DEFAULT_NAME: Final = "default"
_FOLDER: Final = "credentials"


@click.command()
@click.argument("name", default=DEFAULT_NAME, shell_complete=complete_contexts)
@click.option("--no-check", is_flag=True, help="Ask no master who you are: the cluster may be down.")
@global_options
@click.pass_obj
def login(given: Globals, name: str, no_check: bool) -> None:
    """Keep the cluster's address and your credentials as the context NAME, and use it from now on.

    rk login production --store db1:2181,db2:2181 --certs-dir ~/alice

    The files of your user are copied, and the copies are readable by you alone. `rk logout` deletes them.
    """
    if not NAME.fullmatch(name):
        raise UsageFaultError(f"{name!r} is not a name of a context", "Use letters, digits, - and _; at most 64.")
    credentials = credentials_of(given)
    if credentials is None:
        raise UsageFaultError(
            "there are no credentials to log in with",
            "Give --certs-dir DIR with what `rk certs issue --user NAME --to DIR` has made; an open cluster needs no"
            " login: `rk context add`.",
        )
    folder = _folder_of(given, name)
    known = given.configuration.contexts.get(name)
    if known is not None and known.get("certs-dir") != str(folder):
        raise CliError(f"the context {name} exists, and no login has made it", "Give another NAME, or remove it.")
    values = _values(given, credentials, folder)
    who = str(credentials.principal)
    if not no_check:
        with open_cluster(given) as cluster:
            who = cluster.ask_master(messages.WhoAmI(), messages.CallerIdentity).identity
    _keep(credentials, folder)

    def added(document: TOMLDocument) -> TOMLDocument:
        import tomlkit

        contexts = document.setdefault("contexts", tomlkit.table(is_super_table=True))
        contexts[name] = values
        return with_context_in_use(document, name)

    path = edit_file(given, added)
    text = f"logged in as {who}: commands use the context {name} of {path} now"
    output.report({"context": name, "identity": who, "options": values}, text, as_json=given.json)


@click.command()
@click.argument("name", required=False, shell_complete=complete_contexts)
@global_options
@click.pass_obj
def logout(given: Globals, name: str | None) -> None:
    """Delete the credentials and the context of a login: NAME, or the one in use."""
    chosen = name or given.context_in_use()
    if not chosen:
        raise NotFoundError("nobody is logged in", "`rk context list` shows the contexts.")
    values = given.configuration.values_of(chosen)
    folder = _folder_of(given, chosen)
    if values.get("certs-dir") != str(folder):
        raise CliError(f"no login has made the context {chosen}", f"`rk context remove {chosen}` removes it.")
    was_used = given.configuration.context == chosen
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise CliError(f"cannot delete {error.filename}: {error.strerror}", "Delete it by hand.") from error

    def removed(document: TOMLDocument) -> TOMLDocument:
        contexts: Any = document["contexts"]
        del contexts[chosen]
        return with_context_in_use(document, None) if was_used else document

    edit_file(given, removed)
    text = f"logged out of {chosen}: its credentials here are deleted; they stay valid elsewhere"
    output.report({"context": chosen, "deleted": str(folder)}, text, as_json=given.json)


def _folder_of(given: Globals, name: str) -> Path:
    path = file_named(given.config_file)
    if path is None:
        raise CliError("there is no configuration file to write", "RK_CONFIG_FILE is empty; unset the variable.")
    return path.parent / _FOLDER / name


def _values(given: Globals, credentials: Credentials, folder: Path) -> dict[str, str]:
    """Return the options of the context: where the cluster is, and the copies of the credentials."""
    values = {key: as_absolute(key, value) for key, value in given.given_values().items() if key != "data-dir"}
    if "masters" not in values:
        values |= {"store": store_hosts(given), "root": root_of(given)}
    values["certs-dir"] = str(folder)
    if credentials.certificate is not None and store_access(given).tls_ca is not None:
        certificate = folder / credentials.certificate.name
        values |= {"store-tls-ca": str(folder / AUTHORITY_FILE), "store-tls-cert": str(certificate)}
        values["store-tls-key"] = str(certificate.with_suffix(".key"))
    return values


def _keep(credentials: Credentials, folder: Path) -> None:
    """Copy the user's files, and no other ones. Raise CliError."""
    sources = [key_file(credentials.directory, credentials.principal)]
    if credentials.certificate is not None:
        sources += [credentials.certificate, credentials.certificate.with_suffix(".key")]
        sources += [credentials.directory / AUTHORITY_FILE, credentials.directory / EVERY_PORT_FILE]
    try:
        contents = {path.name: path.read_bytes() for path in sources if path.exists()}
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in folder.iterdir():
            is_ours = old.suffix in (".json", ".key", CERTIFICATE_SUFFIX) or old.name == EVERY_PORT_FILE
            if old.name not in contents and is_ours:
                old.unlink()
        for name, content in contents.items():
            write_private(folder / name, content)
    except ConfigError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"cannot use {error.filename}: {error.strerror}") from error
