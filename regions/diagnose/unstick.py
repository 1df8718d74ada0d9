"""What can be done about one replica that is stuck: one legal step, shown before it is taken (N11). Pure.

Every action is a request to the active master, which carries it out as steps of `regions/transitions/states.py`, by
compare-and-set under its epoch. A replica that goes on by itself is left alone: the answer then is who must act and
until when.
"""

from __future__ import annotations

import enum

import msgspec

from regions.messages import Explanation, NextActor


class Remedy(enum.StrEnum):
    """What the master is asked to do."""

    NOTHING = "nothing"
    RETRY = "retry"
    ASSIGN = "assign"
    FENCE = "fence"


class Unstick(msgspec.Struct, frozen=True, omit_defaults=True):
    """The action, what it writes, what it costs, and how it is undone; `why` says why it is this one."""

    action: Remedy
    why: str
    steps: str = ""
    cost: str = ""
    undo: str = ""
    server: str = ""
    #: Which start of the server is meant: the one whose deeds were shown.
    start_code: int = 0


def unstick(said: Explanation, *, server_answers: bool | None) -> Unstick:
    """The action that helps `said`. `server_answers`: whether the server concerned does, None: it was not asked."""
    if said.standing == "PARKED":
        return Unstick(
            Remedy.RETRY,
            f"it was given up after {said.attempt} attempts: {said.last_error or 'no reason given'}",
            "OFFLINE -> OFFLINE with attempt 0 and a new destination, then as any open",
            "none: it is open nowhere",
            "none needed: if it fails again it is parked again",
        )
    if said.actor is NextActor.NOBODY:
        if said.standing == "CLOSED" and any(way.startswith("rk region assign") for way in said.way_out):
            steps = "the region's mark is taken away; (none) -> OFFLINE, then as any open"
            return Unstick(Remedy.ASSIGN, said.headline, steps, "none", f"rk region unassign {said.region_id}")
        return Unstick(Remedy.NOTHING, said.headline)
    if said.actor is NextActor.SERVER and said.server is not None:
        late = said.overdue_ms > 0
        if server_answers is False or late:
            why = f"{said.headline}, and {'its deadline has passed' if late else 'the server does not answer'}"
            return Unstick(
                Remedy.FENCE,
                why,
                "the server's registration is deleted; once its lease must have run out, each of its regions goes"
                " -> OFFLINE (server death) and is opened elsewhere",
                "all regions of that server are unavailable until then",
                "none needed: the server joins again by itself, empty",
                said.server.uuid,
                said.server.start_code,
            )
    return Unstick(Remedy.NOTHING, said.headline)
