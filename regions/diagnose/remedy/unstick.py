"""Chooses one legal step that helps a stuck replica, to be shown before it is taken (N11). Pure.

Every action is a request to the active master, which performs it as steps of `regions/transitions/states.py`, by
compare-and-set under its epoch, provided that nothing has changed since the action was shown. `undo.py` undoes an
action. For a replica that makes progress there is no action, only the process that must act and its deadline.
"""

from __future__ import annotations

import msgspec

from regions.messages import Explanation, NextActor
from regions.records.acts.undo import Remedy


class Unstick(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action with its reason, its writes, its cost, and how to undo it."""

    action: Remedy
    why: str
    steps: str = ""
    cost: str = ""
    undo: str = ""
    server: str = ""
    #: Start code of the server that the explanation was about.
    start_code: int = 0


def unstick(found: Explanation, *, server_answers: bool | None) -> Unstick:
    """Return the action that helps the replica explained by `found`.

    `server_answers`: whether the server has answered a request; None if no request was sent.
    """
    if found.standing == "PARKED":
        return Unstick(
            Remedy.RETRY,
            f"it is parked after {found.attempt} attempts: {found.last_error or 'no reason given'}",
            "OFFLINE -> OFFLINE with attempt 0 and a new destination, then as any open",
            "none: it is not open",
            "not needed: it is parked again if it fails again",
        )
    if found.actor is NextActor.NOBODY:
        if found.standing == "CLOSED" and any(way.startswith("rk region assign") for way in found.way_out):
            steps = "the region's record is set to assigned; (none) -> OFFLINE, then as any open"
            undo = f"rk unstick --undo {found.region_id}, which unassigns it"
            return Unstick(Remedy.ASSIGN, found.headline, steps, "none", undo)
        return Unstick(Remedy.NOTHING, found.headline)
    if found.actor is NextActor.SERVER and found.server is not None:
        late = found.overdue_ms > 0
        if server_answers is False or late:
            why = f"{found.headline}, and {'its deadline has passed' if late else 'the server does not answer'}"
            return Unstick(
                Remedy.FENCE,
                why,
                "the server's registration is deleted; after its lease has ended, each of its regions goes"
                " -> OFFLINE (server death) and opens on another server",
                "all regions of that server are unavailable until then",
                f"the server registers again by itself, without regions; rk unstick --undo {found.region_id} moves its"
                " regions back",
                found.server.uuid,
                found.server.start_code,
            )
    return Unstick(Remedy.NOTHING, found.headline)
