"""Checks of the image without a container engine: commands, paths and health checks match the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cli.topology.load import load
from cli.topology.units import stop_seconds
from cli.topology.words import RUN, arguments

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
TOPOLOGY = load(DOCKER / "cluster.toml")
DAEMONS = {daemon.host: daemon for daemon in TOPOLOGY.nodes()}
SERVICES: dict[str, Any] = COMPOSE["services"]


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


def parse_group(words: list[str]) -> click.Command:
    """Return the command of these words, without parsing options."""
    from cli.main import rk

    command: click.Command = rk
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command


def test_compose_has_the_daemons_of_its_topology() -> None:
    """And one-shot credentials, a tool, Spark, Prometheus and Grafana."""
    others = {"credentials", "rk", "spark-master", "spark-worker1", "spark-worker2", "prometheus", "grafana"}
    assert set(SERVICES) == set(DAEMONS) | others
    assert [len(TOPOLOGY.store), len(TOPOLOGY.masters), len(TOPOLOGY.servers)] == [3, 2, 4]


@pytest.mark.parametrize("host", sorted(DAEMONS))
def test_a_container_runs_its_daemon_of_the_topology(host: str) -> None:
    """By name, under the host name of the topology; the command line parses with the real options."""
    command, context = parse(shlex.split(SERVICES[host]["command"]))
    assert command.name == "run"
    assert context.params["daemon"] == DAEMONS[host].name
    assert context.params["file"] == Path("/etc/regionkeeper/cluster.toml")
    assert SERVICES[host]["hostname"] == host
    known = {word for word in arguments(DAEMONS[host], TOPOLOGY) if word.startswith("--")}
    daemon = parse_group(list(RUN[DAEMONS[host].kind]))
    assert known <= {option for param in daemon.params for option in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("host", sorted(DAEMONS))
def test_a_container_has_what_its_daemon_needs(host: str) -> None:
    """Health by /ready at the admin port, time for the end, directories for data, secrets and shared files.

    Tried: with 30 s of grace for a server, less than its handover and close, the test fails.
    """
    service, daemon = SERVICES[host], DAEMONS[host]
    assert service["healthcheck"]["test"][-1] == f"{host}:{daemon.admin_port}"
    assert int(service["stop_grace_period"].removesuffix("s")) >= stop_seconds(daemon)
    mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in service["volumes"]}
    assert mounts["/data"] == host
    assert mounts["/certs"] == ("server-certs" if daemon.kind == "servers" else "certs")
    assert ("/shared" in mounts) == (daemon.kind != "store")
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["depends_on"]["credentials"] == {"condition": "service_completed_successfully"}
    assert service["build"]["target"] == ("full" if daemon.kind == "masters" else "slim")
    assert f"AS {service['build']['target']}\n" in DOCKERFILE


def test_health_asks_whether_the_daemon_takes_part() -> None:
    """/health of a master says only that its process works."""
    assert 'else "/ready"' in (DOCKER / "health.py").read_text()


def test_the_credentials_are_made_by_commands_that_exist() -> None:
    """`--keep` lets every later start pass."""
    lines = [line for line in SERVICES["credentials"]["command"][0].splitlines() if line]
    words = [shlex.split(line.partition("rk ")[2].partition(" >")[0]) for line in lines if "rk " in line]
    command, context = parse(words[0])
    assert (command.name, context.params["keep"], context.params["to"]) == ("credentials", True, Path("/certs"))
    assert parse(words[1])[0].name == "token"
    assert TOPOLOGY.credentials_dir == "/certs"


def test_prometheus_scrapes_every_daemon_of_the_topology() -> None:
    """With the jobs that the alert rules name, and the token that `credentials` writes."""
    jobs = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    usual = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    assert [one["job_name"] for one in jobs] == [one["job_name"] for one in usual]
    targets = [address for one in jobs for address in one["static_configs"][0]["targets"]]
    assert targets == [f"{one.host}:{one.admin_port}" for one in TOPOLOGY.nodes()]
    assert {one["authorization"]["credentials_file"] for one in jobs} == {"/token/admin"}


@pytest.mark.parametrize("name", ["prometheus", "grafana", *sorted(DAEMONS)])
def test_mounted_files_exist(name: str) -> None:
    """A missing file would be mounted as an empty directory."""
    for mount in SERVICES[name]["volumes"]:
        if mount.startswith("."):
            assert (DOCKER / mount.split(":")[0]).is_file(), mount


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_mounted_volumes_are_declared(name: str) -> None:
    """An undeclared named volume is an error at `up`."""
    for mount in COMPOSE["services"][name].get("volumes", []):
        assert mount.startswith(".") or mount.split(":")[0] in COMPOSE["volumes"]


def test_dockerfile_copies_only_what_exists_and_every_package() -> None:
    """COPY sources exist, and the image has every top-level package."""
    sources = [word for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= set(sources)
