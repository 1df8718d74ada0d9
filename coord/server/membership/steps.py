"""The steps that carry out a membership request: its target, and one configuration change after another. Pure.

Raft changes one voter at a time (`coord.raft.membership.objection`). Nodes are added first and removed last, so that
the store is never smaller than before or after the request.
"""

from __future__ import annotations

from typing import Final

from coord.errors import BAD_ARGUMENTS, NEW_CONFIG_NO_QUORUM
from coord.raft.membership import Configuration
from coord.server.config.addresses import (
    EVERY_ADDRESS,
    NODE_ID_MAX,
    OBSERVER,
    PARTICIPANT,
    MemberAddress,
    Members,
    decode_members,
    parse_member,
    role_of,
    with_members,
)
from coord.server.membership import request as rq
from coord.server.membership.request import MembershipRequest, RefusedError

#: Kinds of steps. ADD adds a node as an observer, or as a PRE_VOTER that becomes a voter when it has caught up.
ADD: Final = "add"
REMOVE: Final = "remove"
#: A voter becomes an observer.
DEMOTE: Final = "demote"
#: A member gets another address.
MOVE: Final = "move"
#: The change only raises the version.
RENEW: Final = "renew"
#: Leadership is transferred; the configuration does not change.
TRANSFER: Final = "transfer"

#: node -> (its addresses, its role)
Target = dict[int, tuple[MemberAddress, str]]


class MembershipStep:
    """One change of the Raft configuration, or the transfer of leadership that precedes it."""

    def __init__(self, kind: str, node_id: int, member: MemberAddress | None = None, role: str = PARTICIPANT) -> None:
        self.kind = kind
        self.node_id = node_id
        self.member = member
        self.role = role

    def apply(self, config: Configuration) -> Configuration:
        """Return `config` after this step."""
        assert self.kind != TRANSFER, "a transfer changes no configuration"
        assert self.member is not None or self.kind in (REMOVE, RENEW), f"no address for {self}"
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
        """Return the text for the log."""
        return f"{self.kind} {self.node_id}"


def target_of(config: Configuration) -> Target:
    """Return the present members. A joining one (PRE_VOTER) is listed as a participant."""
    members = decode_members(config.attachment)
    return {
        i: (members[i], PARTICIPANT if i in config.pre_voters else role_of(config, i))
        for i in config.members()
        if i in members
    }


def target_for(request: MembershipRequest, config: Configuration) -> Target:
    """Return the members that a checked ADD, REMOVE or RECONFIG requests. Raise RefusedError."""
    target = target_of(config)
    node_id = request.node_id
    if request.kind == rq.ADD:
        wanted = parse_member(node_id, request.line)
        if node_id in config.voters and (wanted != target.get(node_id)):
            place = target[node_id][0].line() if node_id in target else "an unknown address"
            raise RefusedError(BAD_ARGUMENTS, f"node {node_id} is already a member, at {place}")
        target[node_id] = wanted
    elif request.kind == rq.REMOVE:
        if not config.is_member(node_id):
            raise RefusedError(BAD_ARGUMENTS, f"there is no node {node_id}; members are {_ids(config.members())}")
        target.pop(node_id, None)
    else:
        assert request.kind == rq.RECONFIG, request.kind
        if request.members:
            target = {}
        for gone in request.leaving_ids():
            target.pop(gone, None)
        for member, role in [*request.joining_members(), *request.all_members()]:
            target[member.node_id] = (member, role)
    _check_target(target, config)
    return target


def _check_target(target: Target, config: Configuration) -> None:
    too_large = [i for i in target if i > NODE_ID_MAX]
    if too_large:
        raise RefusedError(BAD_ARGUMENTS, f"node id {too_large[0]} is not between 1 and {NODE_ID_MAX}")
    if not any(role == PARTICIPANT for _, role in target.values()):
        raise RefusedError(BAD_ARGUMENTS, "a store needs a participant: the last one cannot be removed")
    if not any(role == PARTICIPANT and i in config.voters for i, (_, role) in target.items()):
        raise RefusedError(
            BAD_ARGUMENTS, "no present participant would remain: add nodes first, remove when they have caught up"
        )
    places: dict[tuple[str, int], int] = {}
    for node_id in sorted(target):
        for address in {target[node_id][0].peer, target[node_id][0].client}:
            if address is None:
                continue
            other = places.setdefault(address, node_id)
            if other != node_id and address[0] not in EVERY_ADDRESS:
                raise RefusedError(BAD_ARGUMENTS, f"nodes {other} and {node_id} have the same address {address}")


def requested_ids(request: MembershipRequest) -> list[int]:
    """Return the nodes that a checked RECONFIG adds or keeps."""
    return [member.node_id for member, _ in [*request.joining_members(), *request.all_members()]]


def steps_to(
    target: Target, config: Configuration, leader: int, *, renews: bool, awaited: list[int] | None = None
) -> list[MembershipStep]:
    """Return the steps from `config` to `target`.

    With `renews` there is at least one step: each reconfig gives the configuration a new version. A joining node in
    `awaited` is added once more, because that step ends when the node is a voter.
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
        # The transfer comes first. The next leader does the rest: it is still a member at the end.
        return [MembershipStep(TRANSFER, 0)]
    # Remove observers first: they do not affect the majority.
    gone.sort(key=lambda i: (i in config.voters, i))
    for i in gone:
        if i in target:
            steps.append(MembershipStep(DEMOTE, i, target[i][0], OBSERVER))
        else:
            steps.append(MembershipStep(REMOVE, i))
    if not steps and renews:
        steps.append(MembershipStep(RENEW, 0))
    assert steps or not renews, "a reconfig without a step keeps its version"
    return steps


def check_majority(step: MembershipStep, config: Configuration, alive: list[int]) -> None:
    """Raise RefusedError if the nodes in `alive` are not a majority of the voters that a removing step leaves.

    Such a removal might be committed, but no entry after it.
    """
    if step.kind not in (REMOVE, DEMOTE) or step.node_id not in config.voters:
        return
    left = [i for i in config.voters if i != step.node_id]
    if not left:
        raise RefusedError(BAD_ARGUMENTS, f"node {step.node_id} is the only participant and cannot be removed")
    answering = [i for i in left if i in alive]
    if 2 * len(answering) <= len(left):
        missing = [i for i in left if i not in alive]
        raise RefusedError(
            NEW_CONFIG_NO_QUORUM,
            f"without node {step.node_id} the store would lose its majority: of {_ids(left)} only"
            f" {_ids(answering) or 'none'} answer. Restart {_ids(missing)}, or remove it first",
        )


def addresses_of(config: Configuration, fallback: Members) -> dict[int, tuple[str, int]]:
    """Return the peer address of each member, from the configuration, or else from `fallback`."""
    known = decode_members(config.attachment)
    found: dict[int, tuple[str, int]] = {}
    for i in config.members():
        member = known.get(i) or fallback.get(i)
        if member is not None:
            found[i] = member.peer
    return found


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
