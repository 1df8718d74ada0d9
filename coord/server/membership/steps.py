"""What a wish for other members means: the target, and the single steps that lead there. Pure.

A wish is JSON, whether it came as ZooKeeper's `reconfig` or from `rk coord`:

    {"do": "reconfig", "joining": [line…], "leaving": [id…], "members": [line…], "version": -1}
    {"do": "add", "id": 4, "line": "host:port:port[:role][;host:port]"}     {"do": "remove", "id": 4}
    {"do": "transfer", "id": 2}      {"do": "list"}

Raft changes one voter at a time (`coord.raft.membership.objection`), so a target is reached by steps: whoever is added
first, whoever leaves last, so that the store is never smaller than it has to be.
"""

from __future__ import annotations

from typing import Any, Final

from coord.errors import BAD_ARGUMENTS, MARSHALLING_ERROR, NEW_CONFIG_NO_QUORUM
from coord.raft.membership import MEMBER_ID_MAX, Configuration
from coord.server.config.addresses import (
    NODE_ID_MAX,
    OBSERVER,
    PARTICIPANT,
    MemberAddress,
    Members,
    decode_members,
    parse_member,
    parse_server,
    role_of,
    with_members,
)

ADD: Final = "add"
REMOVE: Final = "remove"
DEMOTE: Final = "demote"
MOVE: Final = "move"
RENEW: Final = "renew"
TRANSFER: Final = "transfer"

#: node -> (where it is, its role)
Target = dict[int, tuple[MemberAddress, str]]


class RefusedError(Exception):
    """A wish that is not granted: `code` as ZooKeeper has it, and one line for people."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class MembershipStep:
    """One change of the Raft configuration, or the hand-over before it."""

    def __init__(self, kind: str, node_id: int, member: MemberAddress | None = None, role: str = PARTICIPANT) -> None:
        self.kind = kind
        self.node_id = node_id
        self.member = member
        self.role = role

    def apply(self, config: Configuration) -> Configuration:
        """`config` after this step."""
        members = decode_members(config.attachment)
        if self.member is not None:
            members[self.node_id] = self.member
        if self.kind == REMOVE:
            members.pop(self.node_id, None)
            config = config.without(self.node_id)
        elif self.kind == DEMOTE or (self.kind == ADD and self.role == OBSERVER):
            config = config.with_learner(self.node_id)
        elif self.kind == ADD:
            config = config.with_pre_voter(self.node_id)
        return with_members(config, members)

    def __repr__(self) -> str:
        """As in the log."""
        return f"{self.kind} {self.node_id}"


def target_of(config: Configuration) -> Target:
    """The members as they are; whoever is on its way to vote counts as a participant."""
    members = decode_members(config.attachment)
    return {
        i: (members[i], PARTICIPANT if i in config.pre_voters else role_of(config, i))
        for i in config.members()
        if i in members
    }


def check_lines(wish: dict[str, Any]) -> None:
    """Whether a wish can be read at all; ZooKeeper says so before it asks who wishes. Raises RefusedError."""
    try:
        do = wish["do"]
        if do == "reconfig":
            for line in [*wish["joining"], *wish["members"]]:
                parse_server(line)
            if any(not _is_id(node_id.strip()) for node_id in wish["leaving"]):
                raise RefusedError(MARSHALLING_ERROR, f"leaving: {','.join(wish['leaving'])!r} is no list of ids")
            if wish["members"] and (wish["joining"] or wish["leaving"]):
                raise ValueError("either joining and leaving, or all members")
        elif do == ADD:
            parse_member(int(wish["id"]), wish["line"])
        elif do in (REMOVE, TRANSFER):
            int(wish["id"])
        elif do != "list":
            raise ValueError(f"{do!r} is not something to wish for")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RefusedError(BAD_ARGUMENTS, str(error)) from error


def _is_id(text: str) -> bool:
    """Whether `text` is the number of a node, as far as its form goes; Python refuses to read thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(MEMBER_ID_MAX))


def target_for(wish: dict[str, Any], config: Configuration) -> Target:
    """The members that a wish, checked before, asks for. Raises RefusedError."""
    target = target_of(config)
    if wish["do"] == ADD:
        node_id = int(wish["id"])
        wanted = parse_member(node_id, wish["line"])
        if node_id in config.voters and (wanted != target.get(node_id)):
            place = target[node_id][0].line() if node_id in target else "an unknown address"
            raise RefusedError(BAD_ARGUMENTS, f"node {node_id} is a member already, at {place}")
        target[node_id] = wanted
    elif wish["do"] == REMOVE:
        node_id = int(wish["id"])
        if not config.is_member(node_id):
            raise RefusedError(BAD_ARGUMENTS, f"there is no node {node_id}; members are {_ids(config.members())}")
        target.pop(node_id, None)
    elif wish["members"]:
        target = {}
        for line in wish["members"]:
            member, role = parse_server(line)
            target[member.node_id] = (member, role)
    else:
        for text in wish["leaving"]:
            target.pop(int(text), None)
        for line in wish["joining"]:
            member, role = parse_server(line)
            target[member.node_id] = (member, role)
    _check_target(target, config)
    return target


def _check_target(target: Target, config: Configuration) -> None:
    too_large = [i for i in target if i > NODE_ID_MAX]
    if too_large:
        raise RefusedError(BAD_ARGUMENTS, f"node id {too_large[0]} is not between 1 and {NODE_ID_MAX}")
    if not any(role == PARTICIPANT for _, role in target.values()):
        raise RefusedError(BAD_ARGUMENTS, "a store needs a participant: its last one cannot leave")
    if not any(role == PARTICIPANT and i in config.voters for i, (_, role) in target.items()):
        raise RefusedError(
            BAD_ARGUMENTS, "none of the present participants would be left: add first, remove when they have caught up"
        )
    places: dict[tuple[str, int], int] = {}
    for node_id in sorted(target):
        for address in {target[node_id][0].peer, target[node_id][0].client}:
            if address is None:
                continue
            other = places.setdefault(address, node_id)
            if other != node_id and address[0] not in ("0.0.0.0", "::"):
                raise RefusedError(BAD_ARGUMENTS, f"nodes {other} and {node_id} have the same address {address}")


def named(wish: dict[str, Any]) -> list[int]:
    """The nodes that a reconfig, checked before, wants to have in the store."""
    return [parse_server(line)[0].node_id for line in [*wish["joining"], *wish["members"]]]


def steps_to(
    target: Target, config: Configuration, leader: int, *, renews: bool, awaited: list[int] | None = None
) -> list[MembershipStep]:
    """The steps from `config` to `target`; with `renews` at least one, as each reconfig has a version of its own.

    Who is on its way to vote and one of `awaited` is added once more: that step is over when it votes.
    """
    present = target_of(config)
    gone = [i for i in config.members() if i not in target]
    steps: list[MembershipStep] = []
    for i in sorted(target):
        member, role = target[i]
        is_awaited = awaited is not None and i in awaited and i in config.pre_voters
        if not config.is_member(i) or (role == PARTICIPANT and (i in config.learners or is_awaited)):
            steps.append(MembershipStep(ADD, i, member, role))
        elif role == OBSERVER and i not in config.learners:
            gone.append(i)
        elif i not in present or present[i][0] != member:
            steps.append(MembershipStep(MOVE, i, member, role))
    if leader in gone and leader in config.voters:
        # The hand-over comes first, and the heir does all the rest: it is still there at the end.
        return [MembershipStep(TRANSFER, 0)]
    # Who does not vote leaves first.
    gone.sort(key=lambda i: (i in config.voters, i))
    for i in gone:
        if i in target:
            steps.append(MembershipStep(DEMOTE, i, target[i][0], OBSERVER))
        else:
            steps.append(MembershipStep(REMOVE, i))
    if not steps and renews:
        steps.append(MembershipStep(RENEW, 0))
    return steps


def check_majority(step: MembershipStep, config: Configuration, alive: list[int]) -> None:
    """Whether those who can answer (`alive`) are a majority of the voters after a step that takes one away.

    Raises RefusedError: the change itself might commit, and nothing after it.
    """
    if step.kind not in (REMOVE, DEMOTE) or step.node_id not in config.voters:
        return
    left = [i for i in config.voters if i != step.node_id]
    if not left:
        raise RefusedError(BAD_ARGUMENTS, f"node {step.node_id} is the only participant: the store would be gone")
    answering = [i for i in left if i in alive]
    if 2 * len(answering) <= len(left):
        missing = [i for i in left if i not in alive]
        raise RefusedError(
            NEW_CONFIG_NO_QUORUM,
            f"without node {step.node_id} the store would lose its majority: of {_ids(left)} only"
            f" {_ids(answering) or 'none'} answer. Bring {_ids(missing)} back, or remove it first",
        )


def addresses_of(config: Configuration, fallback: Members) -> dict[int, tuple[str, int]]:
    """Where to dial each member: as the configuration says, else as the settings do."""
    known = decode_members(config.attachment)
    found: dict[int, tuple[str, int]] = {}
    for i in config.members():
        member = known.get(i) or fallback.get(i)
        if member is not None:
            found[i] = member.peer
    return found


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
