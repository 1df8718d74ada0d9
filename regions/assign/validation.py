"""Recomputes the assigner's invariants from the cluster state.

The most important one is `check_progress`: a replica about which the assigner makes no decision would never change. So
every replica must be in the selection, have an order, or be at rest as wanted, unless a write or read is in progress.
"""

from __future__ import annotations

from regions.assign.replacement import Replacements
from regions.assign.resharding.parents import is_put_down
from regions.assign.selection import Selection
from regions.cluster.entities import CLOSE, OPEN, Replica
from regions.cluster.state import ClusterState
from regions.cluster.work import WriteState
from regions.transitions.next_action import Action, next_action


def check_progress(world: ClusterState, selection: Selection, replacements: Replacements) -> None:
    """Raise AssertionError for a replica that needs an action and will not get one."""
    for replica in world.replicas.values():
        if replica.write_state is not WriteState.IDLE or replica.region in replacements:
            continue  # a decision follows the store's reply, or the replacement of the region
        if replica.failure is not None or replica.refusal is not None:
            continue  # the transition is being read
        if replica.region.is_leaving and is_put_down(replica.region):
            continue  # `Reshardings.validate` checks that its region is being replaced
        if replica.awaits_down:
            continue
        if replica.transition is None:
            _check_resting(replica, selection)
        else:
            _check_moving(world, replica, selection)


def _check_resting(replica: Replica, selection: Selection) -> None:
    key, server, order = replica.key, replica.open_on, replica.order
    if server is None:
        assert order is None, f"{key} is open nowhere, and has an order"
        assert not replica.wants_open or replica in selection, f"{key} is open nowhere, and waits for no destination"
        return
    if server.fenced_until_ms is not None:
        assert order is None, f"{key} is on {server.incarnation}, which was fenced, and has an order"
        return
    if server.fencing:
        return  # orders stay until it is known whether the server was fenced
    must_close = not replica.wants_open or replica.move is not None or replica.is_damaged
    if must_close:
        assert order is not None, f"{key} has to be closed on {server.incarnation}, and has no order"
    elif not server.draining:
        assert order is None, f"{key} is open where it should be, and has an order"


def _check_moving(world: ClusterState, replica: Replica, selection: Selection) -> None:
    transition, key, order = replica.transition, replica.key, replica.order
    assert transition is not None, key
    if transition.parked and replica.wants_open:
        return
    source, destination = world.party(transition.source), world.party(transition.destination)
    step = next_action(transition.state, source, destination, reopen=replica.wants_open)
    what = f"{key} is {transition.state.value}"
    if step.action is Action.REASSIGN:
        assert replica in selection, f"{what}, needs a destination, and waits for none"
    elif step.action in (Action.ORDER_OPEN, Action.WAIT):
        is_closing = transition.source is not None and step.cause.value == "close done"
        server = world.alive(transition.source if is_closing else transition.destination)
        assert server is not None, f"{what}, and the server that should act is gone"
        if server.fenced_until_ms is None:
            fits = order is not None and order.server is server and order.kind == (CLOSE if is_closing else OPEN)
            assert fits, f"{what}, and has no order for {server.incarnation}"
            is_current = is_closing or (order is not None and order.version == replica.version)
            assert is_current, f"{what} at version {replica.version}, and its order is of another version"
    else:
        raise AssertionError(f"{what}, the next step is {step.action.name}, and nothing is written")
