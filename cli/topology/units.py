"""Units of systemd for one machine of a topology. Pure.

    rk-store@.service …                  one template for each kind of daemon: user, limits, restarts, hardening
    rk-store@1.service.d/topology.conf   the differences: command line, directories, time to stop
    regionkeeper.target                  starts and stops all daemons of the machine

Drop-ins instead of a file of variables, because systemd passes each word of ExecStart unchanged, but splits variables
at blanks.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from cli.topology.model import MASTERS, SERVERS, STORE, PlacedDaemon, Topology
from cli.topology.words import arguments, credentials_dir, data_dir

TARGET: Final = "regionkeeper.target"
#: Seconds in which store nodes and masters stop; `rk up` gives them 8.
STOP_S: Final = 20.0
#: Time in which a region server must end after it has handed its regions over.
CLOSE_S: Final = 30.0
#: Default of `rk server run --handover-s`.
HANDOVER_S: Final = 30.0
#: Open files: a store node serves 10,000 clients, a region server has files of thousands of regions.
FILES_MAX: Final = 65536

_STATE: Final = "/var/lib/"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/:=,@+\[\]-]+")
_WHAT: Final = {STORE: "store node %i", MASTERS: "master %i", SERVERS: "region server %i"}
_TEMPLATE: Final = """\
# RegionKeeper: written by `rk systemd`. The command line of each daemon is in its drop-in, topology.conf.
[Unit]
Description=RegionKeeper {what}
Documentation=man:rk(1)
After=network-online.target time-sync.target
Wants=network-online.target
PartOf={target}
# Never give up: a daemon that waits for the others may end many times.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Group={user}
# Status 0: a node that was removed from the store. Status 2: a wrong command line, which no restart repairs.
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=2
# SIGTERM to the daemon alone: it stops its own children in order.
KillMode=mixed
LimitNOFILE={files}
LimitCORE=0
UMask=0077
Environment=PYTHONUNBUFFERED=1
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
# MemoryDenyWriteExecute stays off: Java, which plans by Spark, and foreign functions write code into memory.

[Install]
WantedBy={target}
"""


def unit_name(daemon: PlacedDaemon) -> str:
    """Return the unit of a daemon, such as `rk-server@2.service`."""
    return f"{_template(daemon.kind)}@{daemon.number}.service"


def stop_seconds(daemon: PlacedDaemon) -> float:
    """Return how long a supervisor must wait for the end of a daemon before it kills the process.

    A region server moves its regions away first.
    """
    if daemon.kind != SERVERS:
        return STOP_S
    words = daemon.options
    given = [words[position + 1] for position, word in enumerate(words) if word == "--handover-s"]
    return (float(given[-1]) if given else HANDOVER_S) + CLOSE_S


def units(topology: Topology, host: str, program: str, user: str) -> dict[str, str]:
    """Return the files of one machine by their paths below /etc/systemd/system."""
    here = [one for one in topology.nodes() if one.host == host]
    files = {
        f"{_template(kind)}@.service": _TEMPLATE.format(what=_WHAT[kind], target=TARGET, user=user, files=FILES_MAX)
        for kind in dict.fromkeys(one.kind for one in here)
    }
    for daemon in here:
        files[f"{unit_name(daemon)}.d/topology.conf"] = _drop_in(daemon, topology, program)
    files[TARGET] = _target(topology, host, here)
    return files


def _template(kind: str) -> str:
    return {STORE: "rk-store", MASTERS: "rk-master", SERVERS: "rk-server"}[kind]


def _drop_in(daemon: PlacedDaemon, topology: Topology, program: str) -> str:
    command = " ".join(quoted_word(word) for word in (program, *arguments(daemon, topology)))
    lines = [f"# {daemon.name} of cluster {topology.name}, on {daemon.host}: written by `rk systemd`."]
    lines += ["[Service]", f"ExecStart={command}", f"TimeoutStopSec={stop_seconds(daemon):g}s"]
    lines += _writable(data_dir(daemon, topology))
    if daemon.kind == SERVERS and topology.shared_dir:
        lines.append(f"ReadWritePaths={topology.shared_dir}")
    certs = credentials_dir(daemon, topology)
    lines += [f"ReadOnlyPaths={certs}"] if certs else []
    return "\n".join(lines) + "\n"


def _writable(directory: str) -> list[str]:
    """Return the settings for a data directory. Below /var/lib systemd makes the directory for the unit's user."""
    if directory.startswith(_STATE):
        return [f"StateDirectory={PurePosixPath(directory).relative_to(_STATE)}", "StateDirectoryMode=0700"]
    return [f"ReadWritePaths={directory}"]


def _target(topology: Topology, host: str, here: list[PlacedDaemon]) -> str:
    names = " ".join(unit_name(one) for one in here)
    return (
        "# RegionKeeper: written by `rk systemd`.\n[Unit]\n"
        f"Description=RegionKeeper cluster {topology.name} on {host}\n"
        f"Documentation=man:rk(1)\nWants={names}\n\n[Install]\nWantedBy=multi-user.target\n"
    )


def quoted_word(word: str) -> str:
    """Return a word of ExecStart as systemd reads it: quoted if necessary, without specifiers and variables."""
    safe = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(word):
        return safe
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"') + '"'
