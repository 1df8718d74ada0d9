"""Reads a topology file, with the options that this build's daemons have."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Final

import click

from cli.common.errors import NotFoundError, UsageFaultError
from cli.common.local import SUPER_FILE
from cli.common.options import Globals
from cli.topology.checks import DaemonOption, TopologyError
from cli.topology.model import FILE_BYTES_MAX, INSECURE, KINDS, MASTERS, SERVERS, STORE, Topology, parse
from cli.topology.words import store_addresses

#: Default name of a topology file.
USUAL_FILE: Final = "cluster.toml"

#: Modules whose `run` runs each kind of daemon.
_MODULES: Final = {STORE: "cli.store.command", MASTERS: "cli.master", SERVERS: "cli.server"}


def load(path: Path) -> Topology:
    """Read and check a topology file. Raise UsageFaultError or NotFoundError."""
    return parsed(read(path), str(path))


def read(path: Path) -> str:
    """Return the text of a topology file. Raise UsageFaultError or NotFoundError."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageFaultError(f"{path} is longer than {FILE_BYTES_MAX} bytes", "Is it a topology file?")
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no topology file {path}", "examples/cluster.toml is one.") from error
    except OSError as error:
        raise UsageFaultError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageFaultError(f"{path} is not text in UTF-8", "Is it a topology file?") from error


def parsed(text: str, file: str) -> Topology:
    """Decode a topology file's text. Raise UsageFaultError."""
    try:
        return parse(text, file, known_options())
    except TopologyError as error:
        raise UsageFaultError(str(error), error.hint) from error


def known_options() -> dict[str, dict[str, DaemonOption]]:
    """Return the options of the commands that run daemons, by kind."""
    return {
        kind: {_name(one): _described(one) for one in _run(kind).params if isinstance(one, click.Option)}
        for kind in KINDS
    }


def _run(kind: str) -> click.Command:
    """Return the command that runs a daemon; imported by name, as `rk` does."""
    command = importlib.import_module(_MODULES[kind]).run
    assert isinstance(command, click.Command)
    return command


def _name(option: click.Option) -> str:
    return max(option.opts, key=len).lstrip("-")


def _described(option: click.Option) -> DaemonOption:
    def objection(value: object) -> str:
        if isinstance(option.type, click.Path):
            return ""  # a file of another machine
        try:
            option.type.convert(str(value), option, None)
        except click.BadParameter as error:
            return error.message
        return ""

    negative = max(option.secondary_opts, key=len, default="")
    return DaemonOption(objection, is_flag=option.is_flag, negative=negative, is_list=option.multiple)


def local_data_dir(topology: Topology, path: Path) -> Path:
    """Return the directory of a local cluster: data-dir beside the file, or NAME-data there."""
    named = topology.data_dir or f"{topology.name}-data"
    return Path(os.path.normpath(path.expanduser().absolute().parent / Path(named)))


def _has_credential(given: Globals) -> bool:
    """Return True if the directory of the command's credentials has the masters' credential for the store, and this
    user may read it."""
    directory = given.settings().get("certs-dir", "")
    return bool(directory) and os.access(Path(directory).expanduser() / SUPER_FILE, os.R_OK)


def apply(given: Globals, path: Path) -> Topology:
    """Let a command act on the cluster of a topology file. A second place is refused when it is used."""
    topology = load(path)
    if topology.is_local:
        place = {"data_dir": str(local_data_dir(topology, path))}
    else:
        place = {"store": store_addresses(topology)}
        given.root = topology.root
        if topology.credentials != INSECURE and "certs-dir" not in given.settings():
            given.store_settings["certs-dir"] = topology.credentials_dir
        if topology.store and not given.names_store_credential() and _has_credential(given):
            given.store_settings["store-auth"] = f"@{given.settings()['certs-dir']}"
    given.topology = place
    for name, value in place.items():
        setattr(given, name, getattr(given, name) or value)
    return topology
