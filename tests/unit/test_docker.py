"""Checks of the image without a container engine: commands, paths and health checks match the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
DAEMONS = {name: service for name, service in COMPOSE["services"].items() if not name.startswith("spark")}


def parse(arguments: list[str]) -> tuple[click.Command, click.Context]:
    """Parse a command line of `rk` down to its last subcommand, as click would before running it."""
    from cli.main import rk

    command: click.Command = rk
    context = command.make_context("rk", arguments)
    while isinstance(command, click.Group):
        name, command_or_none, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command_or_none is not None, f"no such command: {name}"
        command = command_or_none
        context = command.make_context(name, rest, parent=context)
    return command, context


def test_compose_has_the_whole_cluster() -> None:
    """Three store nodes, two masters, four region servers, a Spark master and two workers."""
    kinds = [re.sub(r"\d+$", "", name) for name in COMPOSE["services"]]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "coord": 3,
        "master": 2,
        "server": 4,
        "spark-master": 1,
        "spark-worker": 2,
    }


@pytest.mark.parametrize("name", sorted(DAEMONS))
def test_daemon_command_parses_with_the_real_options(name: str) -> None:
    """A renamed or missing option of a daemon fails here, not in a container."""
    command, context = parse(shlex.split(DAEMONS[name]["command"]))
    assert command.name == "run"
    assert context.params


@pytest.mark.parametrize("name", sorted(DAEMONS))
def test_health_check_asks_the_admin_port_that_the_daemon_opens(name: str) -> None:
    """The probed address is the daemon's own --admin-address."""
    words = shlex.split(DAEMONS[name]["command"])
    assert DAEMONS[name]["healthcheck"]["test"][-1] == words[words.index("--admin-address") + 1]


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_mounted_volumes_are_declared(name: str) -> None:
    """An undeclared named volume is an error at `up`."""
    for mount in COMPOSE["services"][name].get("volumes", []):
        assert mount.split(":")[0] in COMPOSE["volumes"]


def test_dockerfile_copies_only_what_exists_and_every_package() -> None:
    """COPY sources exist, and the image has every top-level package."""
    sources = [word for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= set(sources)
