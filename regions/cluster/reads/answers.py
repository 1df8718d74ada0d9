"""Replies of multi-reads of transitions. Pure; compiled, because each transition that is read passes here."""

from __future__ import annotations

from collections.abc import Sequence

from coord.errors import NoNode, OperationError
from regions.records.znodes import CorruptZnode, decode_transition
from regions.transitions.writes import TransitionRead


def answers(
    keys: Sequence[str], paths: Sequence[str], results: Sequence[object]
) -> tuple[list[TransitionRead], list[str]]:
    """Return the transitions that were read, and the error of each transition that cannot be read.

    `keys` and `paths` name the transitions in the order of `results`. A transition without a znode counts as read: its
    record is None.
    """
    found: list[TransitionRead] = []
    troubles: list[str] = []
    for key, path, result in zip(keys, paths, results, strict=True):
        if isinstance(result, tuple):
            data, stat = result
            try:
                record = decode_transition(data, path)
            except CorruptZnode as error:
                troubles.append(f"it is damaged: {error}")
            else:
                found.append(TransitionRead(key, record, stat.version))
        elif isinstance(result, NoNode):
            found.append(TransitionRead(key, None, -1))
        else:
            assert isinstance(result, OperationError), result
            troubles.append(f"{result.path}: {result}")
    return found, troubles
