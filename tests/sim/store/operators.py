"""Operators: clients that change the members of the store during the other faults.

They send valid and invalid requests, in some histories two at once. They set up machines before or after adding them,
keep dead members, remove living ones, and sometimes empty the directory of a removed machine. Every success must be
true: some configuration committed after the request contains the requested change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from coord import errors as e
from coord.raft.membership import Configuration
from coord.server.config.addresses import OBSERVER, PARTICIPANT
from coord.wire import records as r
from coord.wire.jute import buffer, read_buffer
from simulation.engine.history import Violation
from tests.sim.store.clients import Client, Link, Request
from tests.sim.store.model import CONFIG_PATH
from tests.sim.store.world import SUPER_PASSWORD, Host, member_of

if TYPE_CHECKING:
    from tests.sim.store.world import World

#: Codes of rejections.
REFUSALS: Final = (
    *(e.BAD_ARGUMENTS, e.BAD_VERSION, e.NEW_CONFIG_NO_QUORUM, e.RECONFIG_IN_PROGRESS, e.NO_AUTH),
    *(e.SESSION_EXPIRED, e.SESSION_MOVED),
)
MEMBERSHIP_OPCODES: Final = (r.OP_RECONFIG, r.OP_MEMBERSHIP)


class RequestedChange:
    """A requested change, and a test for configurations that contain it."""

    def __init__(self, text: str, is_fulfilled: Callable[[Configuration], bool]) -> None:
        self.text = text
        self.is_fulfilled = is_fulfilled
        #: Number of committed configurations when it was sent.
        self.since = 0


class Operator(Client):
    """A client that is `super` and requests other members."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.user, self.password = b"super", SUPER_PASSWORD
        self.takes_read_only = False
        self.watches = 0.0
        self.think_us = self.chance.pick([60_000, 300_000])
        self.depth = 1
        self._changes: dict[int, RequestedChange] = {}
        self._is_calm = False

    def calm(self) -> None:
        """Request no more changes."""
        super().calm()
        self._is_calm = True

    def drop(self, link: Link, *, quietly: bool = False) -> None:
        """Forget the requests of a lost connection: their outcome is unknown."""
        super().drop(link, quietly=quietly)
        self._changes.clear()

    def _ask(self, link: Link) -> None:
        if self._is_calm or self.chance.happens(0.5):
            super()._ask(link)
        elif not self._changes and link.is_open and all(map(_is_sound, self.world.hosts.values())):
            # Removing a voter while another voter's disk is lost or damaged may lose the majority for good.
            self._request_change(link)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _request_change(self, link: Link) -> None:
        chance = self.chance
        config = self.world.check.config()
        outsiders = [node for node in self.world.hosts if not config.is_member(node)]
        kind = chance.below(9)
        if kind < 3 and outsiders:
            self._add(link, chance.pick(outsiders), OBSERVER if chance.happens(0.25) else PARTICIPANT)
        elif kind < 5:
            self._remove(link, chance.pick(config.members()))
        elif kind == 5 and outsiders:
            self._replace(link, chance.pick(config.members()), chance.pick(outsiders))
        elif kind == 6:
            self._send_membership(link, {"do": "transfer", "id": chance.pick(list(self.world.hosts))}, lambda _: True)
        elif kind == 7:
            self._change_role(link, chance.pick(config.members()), config)
        else:
            self._send_membership(link, {"do": "list"}, lambda _: True)

    def _prepare(self, host: Host) -> None:
        """Set the machine up, perhaps on an emptied disk. It waits to be added."""
        chance = self.chance
        if host.process is None and chance.happens(0.5) and self._is_out_of_everything(host.id):
            self.world.counts["wiped_outsider"] += 1
            host.wipe()
        if chance.happens(0.9):
            host.install()

    def _is_out_of_everything(self, node: int) -> bool:
        """Return True if no configuration that any node may still use has this node: then its disk is no member's
        memory."""
        for host in self.world.hosts.values():
            process = host.process
            if process is None and host.id != node and host.is_installed:
                return False
            if process is not None and any(c.is_member(node) for c in process.node.core.configs.configs):
                return False
        return not self.world.check.config().is_member(node)

    def _add(self, link: Link, node: int, role: str) -> None:
        host = self.world.hosts[node]
        if self.chance.happens(0.7):
            self._prepare(host)
        else:
            self.world.at(self.world.now + self.chance.below(1_000_000), self._prepare_late, host)
        line = member_of(node).zookeeper_line(role).partition("=")[2]
        if self.chance.happens(0.5):
            change = {"do": "add", "id": node, "line": line}
            self._send_membership(link, change, lambda config: config.is_member(node))
        else:
            full = f"server.{node}={line}"
            self._send_reconfig(link, full, "", lambda config: _has_role(config, node, role))

    def _prepare_late(self, host: Host) -> None:
        if self.world.faulty:
            self._prepare(host)

    def _remove(self, link: Link, node: int) -> None:
        if self.chance.happens(0.5):
            self._send_membership(link, {"do": "remove", "id": node}, lambda config: not config.is_member(node))
        else:
            self._send_reconfig(link, "", str(node), lambda config: not config.is_member(node))

    def _replace(self, link: Link, old: int, new: int) -> None:
        self._prepare(self.world.hosts[new])
        line = member_of(new).zookeeper_line(PARTICIPANT)
        self._send_reconfig(
            link, line, str(old), lambda config: not config.is_member(old) and _has_role(config, new, PARTICIPANT)
        )

    def _change_role(self, link: Link, node: int, config: Configuration) -> None:
        role = OBSERVER if config.is_voter(node) else PARTICIPANT
        line = member_of(node).zookeeper_line(role)
        version = 1 if self.chance.happens(0.2) else -1
        self._send_reconfig(link, line, "", lambda config: _has_role(config, node, role), version)

    def _send_reconfig(
        self, link: Link, joining: str, leaving: str, done: Callable[[Configuration], bool], version: int = -1
    ) -> None:
        body = r.encode_reconfig(joining.encode(), leaving.encode(), b"", version)
        self._send(link, r.OP_RECONFIG, body, RequestedChange(f"+{joining} -{leaving}", done))

    def _send_membership(self, link: Link, change: dict[str, Any], done: Callable[[Configuration], bool]) -> None:
        text = json.dumps(change)
        self._send(link, r.OP_MEMBERSHIP, buffer(text.encode()), RequestedChange(text, done))

    def _send(self, link: Link, opcode: int, body: bytes, change: RequestedChange) -> None:
        request = Request(self._next(), opcode, b"", body)
        change.since = len(self.world.check.configs)
        self._changes[request.xid] = change
        self.world.note(f"client {self.number} asks for {change.text}")
        self.request(link, request)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _judge(self, link: Link, request: Request, zxid: int, err: int, body: bytes) -> None:
        if request.opcode not in MEMBERSHIP_OPCODES:
            super()._judge(link, request, zxid, err, body)
            return
        change = self._changes.pop(request.xid, None)
        who = self._who(link)
        if request.opcode == r.OP_MEMBERSHIP:
            if err != e.OK:
                raise Violation(f"{who}: err {err} for a membership request: its code belongs into the answer")
            facts = json.loads(read_buffer(body, 0, len(body))[0] or b"")
            err = facts["code"]
        if err not in (e.OK, *REFUSALS):
            raise Violation(f"{who}: err {err} for a membership request")
        self.world.counts["membership_refused" if err else "membership_granted"] += 1
        if err or change is None:
            return
        check = self.world.check
        known = [config for at, config in check.configs[max(0, change.since - 1) :] if at <= zxid]
        if known and not any(map(change.is_fulfilled, known)):
            raise Violation(f"{who} is answered at {zxid} that {change.text} is done; there was {known}")
        if request.opcode == r.OP_RECONFIG:
            data, _ = r.decode_data_reply(body, 0, len(body))
            view = check.model.at(CONFIG_PATH, zxid)
            if view is None or data != view[0]:
                raise Violation(f"{who} is told of the configuration {data!r} at {zxid}, should be {view}")


def _is_sound(host: Host) -> bool:
    return host.is_whole() and not host.has_hidden_damage()


def _has_role(config: Configuration, node: int, role: str) -> bool:
    return config.is_voter(node) if role == PARTICIPANT else node in config.learners
