"""`rk coord list|add|remove|transfer-leader`: the members of a running store.

The request goes over the client protocol to any node, and that node forwards it to the leader
(`coord.server.membership.reconfig`). The request needs the permission that ZooKeeper's own `reconfig` needs: write
permission on /zookeeper/config, which super has. The admin port is not used, since it listens on loopback only and has
neither users nor TLS.
"""

from __future__ import annotations

import contextlib
import json
import struct
import time
from typing import Any, Final

import click
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, UnimplementedError
from kazoo.handlers.threading import KazooTimeoutError

from cli.common.asking.store import open_named_store, rights_of, store_errors, store_hosts
from cli.common.errors import CliError, NotFoundError, UnreachableError, UsageFaultError
from cli.common.options import Globals, global_options
from cli.common.output import console, print_json, print_json_line, seconds, table
from cli.common.waiting import limit_each_wait, limit_s, waiting
from coord.errors import NO_AUTH, shown_s
from coord.server.config.addresses import parse_host_port, shown
from coord.wire.opcodes import OP_MEMBERSHIP

#: Time for which `add` waits until the node votes, and interval of the checks.
WAIT_S: Final = 120.0
LOOK_S: Final = 0.3
_CHANGE_S: Final = 60.0
_FIRST_NOTICE_S: Final = 2.0


class _MembershipRequest:
    """A membership request in the form that kazoo sends."""

    type: Final = OP_MEMBERSHIP

    def __init__(self, body: bytes) -> None:
        self.body = body

    def serialize(self) -> bytes:
        """Return the record that follows the request's header."""
        return struct.pack("!i", len(self.body)) + self.body

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> dict[str, Any]:
        """Return the record of the reply."""
        (length,) = struct.unpack_from("!i", data, offset)
        answer: dict[str, Any] = json.loads(data[offset + 4 : offset + 4 + length])
        return answer


@click.command("list")
@global_options
@click.pass_obj
def list_members(given: Globals) -> None:
    """List the members of a running store: roles, addresses, the leader, and how far each member lags."""
    with MemberRequests(given) as store:
        facts = store.ask({"do": "list"})
    if given.json:
        print_json({name: facts.get(name) for name in ("version", "term", "is_settled", "level", "nodes")})
        return
    rows = [
        (
            str(node["id"]),
            "leader" if node["is_leader"] else node["role"],
            "yes" if node["is_up"] else "no",
            "" if node["behind"] is None else str(node["behind"]),
            "" if node.get("supported_level") is None else str(node["supported_level"]),
            node["client"],
            node["peer"],
        )
        for node in facts["nodes"]
    ]
    out = console()
    out.print(table("", ["#id", "role", "up", "#entries behind", "#level", "clients", "peers"], rows))
    settled = "" if facts["is_settled"] else ", a change is not committed yet"
    # A leader of a build without feature levels sends no level.
    level = facts.get("level", 0)
    out.print(f"configuration {facts['version']:x}, term {facts['term']}, feature level {level}{settled}")


@click.command()
@click.argument("node_id", metavar="ID", type=int)
@click.option("--peer", metavar="HOST:PORT", required=True, help="Its --peer-address, as the other nodes reach it.")
@click.option("--client", metavar="HOST:PORT", help="Its --client-address, as clients reach it.")
@click.option("--observer", is_flag=True, help="It follows and serves clients; it never votes.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it has caught up.")
@global_options
@click.pass_obj
def add(given: Globals, node_id: int, peer: str, client: str | None, observer: bool, no_wait: bool) -> None:
    """Add node ID to a running store. Start the node with `rk coord run --id ID … --join`, before or after.

    The node votes once it has caught up. A node that never catches up can be removed: until then it has no vote.
    """
    began = time.monotonic()
    line = member_line(peer, client, observer)
    with MemberRequests(given) as store:
        store.ask({"do": "add", "id": node_id, "line": line})
        if not no_wait:
            await_member(given, store, node_id, "observer" if observer else "participant")
    _report(given, f"node {node_id} is added", began, {"id": node_id, "waited": not no_wait})


@click.command()
@click.argument("node_id", metavar="ID", type=int)
@global_options
@click.pass_obj
def remove(given: Globals, node_id: int) -> None:
    """Remove node ID from a running store, whether the node runs or not. A leader transfers leadership first.

    Rejected if the remaining nodes that run are no majority. The process of the node ends
    by itself 10 s later.
    """
    began = time.monotonic()
    with MemberRequests(given) as store:
        if all(node["id"] != node_id for node in store.ask({"do": "list"})["nodes"]):
            raise NotFoundError(f"node {node_id} is not a member", "`rk coord list` shows who is.")
        store.ask({"do": "remove", "id": node_id}, repeats=True)
    _report(given, f"node {node_id} is removed", began, {"id": node_id})


@click.command("transfer-leader")
@click.argument("node_id", metavar="ID", type=int)
@global_options
@click.pass_obj
def transfer_leader(given: Globals, node_id: int) -> None:
    """Make node ID the leader, for example before maintenance of the leader's machine. Clients stay connected."""
    began = time.monotonic()
    with MemberRequests(given) as store:
        store.ask({"do": "transfer", "id": node_id})
        nodes = store.ask({"do": "list"})["nodes"]
    if not any(node["id"] == node_id and node["is_leader"] for node in nodes):
        leader = next((node["id"] for node in nodes if node["is_leader"]), "nobody")
        raise CliError(f"node {node_id} did not win the election: {leader} leads", "Try again.")
    _report(given, f"node {node_id} leads", began, {"id": node_id})


class MemberRequests:
    """A session with the store, for membership requests. A context manager."""

    def __init__(self, given: Globals) -> None:
        self.hosts = store_hosts(given)
        access = rights_of(given)
        self._is_known = bool(access.auth or access.sasl)
        self._context = open_named_store(given, access)
        self._client: KazooClient

    def __enter__(self) -> MemberRequests:
        self._client = self._context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)

    def ask(self, request: dict[str, Any], *, repeats: bool = False) -> dict[str, Any]:
        """Return the answer to a request. Raise CliError with the leader's error text if the leader rejects it.

        `repeats`: the request is idempotent, so it is sent again if the connection breaks.
        """
        client = self._client
        deadline = time.monotonic() + _CHANGE_S
        again = False
        while True:
            try:
                answer = self._call(request)
                break
            except UnimplementedError as error:
                raise CliError(
                    f"the store at {self.hosts} is not a RegionKeeper store: it does not implement this request"
                ) from error
            except KazooException as error:
                if not repeats or time.monotonic() > deadline:
                    raise UnreachableError(
                        f"the store at {self.hosts} closed the connection; the change may have been made",
                        "`rk coord list` shows the members.",
                    ) from error
                again = True
                client.handler.sleep_func(LOOK_S)
        if answer["code"]:
            if again and request["do"] == "remove" and "there is no node" in answer["error"]:
                return answer  # The first attempt did it.
            hint = ""
            if answer["code"] == NO_AUTH and self._is_known:
                hint = "The given credential is not super's: another user, or a wrong password."
            elif answer["code"] == NO_AUTH:
                hint = "Give super's credential with --store-auth (RK_STORE_AUTH); nodes know it by --super-digest."
            raise CliError(answer["error"], hint)
        return answer

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        errors = store_errors(self.hosts) if request["do"] == "list" else contextlib.nullcontext()
        timeout_s = limit_s(_CHANGE_S)
        try:
            with errors, waiting(f"the store at {self.hosts} to answer {request['do']!r}"):
                result = self._client.handler.async_result()
                self._client._call(_MembershipRequest(json.dumps(request).encode()), result)
                answer: dict[str, Any] = result.get(timeout=timeout_s)
                return answer
        except KazooTimeoutError as error:
            raise UnreachableError(
                f"the store at {self.hosts} did not answer {request['do']!r} within {shown_s(timeout_s)} s",
                "A change may have been made: `rk coord list` shows the members.",
            ) from error


def await_member(given: Globals, store: MemberRequests, node_id: int, role: str) -> None:
    """Show the progress of the new node until it has its role and has caught up."""
    limit_each_wait()
    began = time.monotonic()
    shown = ""
    while True:
        node = next((n for n in store.ask({"do": "list"})["nodes"] if n["id"] == node_id), None)
        if node is None:
            raise CliError(f"node {node_id} was removed while it caught up")
        if node["role"] == role and node["is_up"] and (role == "participant" or not node["behind"]):
            return
        now = time.monotonic()
        if now - began > WAIT_S:
            raise CliError(
                f"node {node_id} has not caught up within {WAIT_S:.0f} s: {_state(node)}",
                f"The node keeps catching up; `rk coord list` shows it, `rk coord remove {node_id}` removes it.",
            )
        if now - began > _FIRST_NOTICE_S and _state(node) != shown:
            shown = _state(node)
            if given.json:
                print_json_line({"event": "waiting", "id": node_id, "is_up": node["is_up"], "behind": node["behind"]})
            else:
                console(stderr=True).print(f"node {node_id} {shown}")
        time.sleep(LOOK_S)


def _state(node: dict[str, Any]) -> str:
    if not node["is_up"]:
        return "does not run yet, or its peers cannot reach it"
    return f"catches up: {node['behind']} entries behind"


def member_line(peer: str, client: str | None, observer: bool) -> str:
    """Return the text that follows `server.N=`. Raise UsageFaultError."""
    try:
        host, port = parse_host_port(peer)
        at = f"{shown((host, port))}:{port}:{'observer' if observer else 'participant'}"
        return at + (f";{shown(parse_host_port(client))}" if client else "")
    except ValueError as error:
        raise UsageFaultError(str(error)) from error


def _report(given: Globals, text: str, began: float, facts: dict[str, object]) -> None:
    took = time.monotonic() - began
    if given.json:
        print_json_line({"done": text, "seconds": round(took, 3), **facts})
    else:
        console().print(f"{text} ({seconds(took)})")
