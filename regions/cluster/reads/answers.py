"""What a multi-read of transitions has answered. Pure; compiled, as each opening passes here."""

from __future__ import annotations

from collections.abc import Sequence

from coord.errors import NoNode, OperationError
from regions.cluster.events import TransitionRead
from regions.records.znodes import CorruptZnode, decode_transition


def answers(
    keys: Sequence[tuple[str, int]], paths: Sequence[str], results: Sequence[object]
) -> tuple[list[TransitionRead], list[str]]:
    """Return the transitions that were read, and for each other one why it cannot be read.

    `keys` and `paths` name the transitions in the order of `results`. A transition that does not exist was read, too.
    """
    found: list[TransitionRead] = []
    troubles: list[str] = []
    for (region_id, replica), path, result in zip(keys, paths, results, strict=True):
        if isinstance(result, tuple):
            data, stat = result
            try:
                record = decode_transition(data, path)
            except CorruptZnode as error:
                troubles.append(f"it is damaged: {error}")
            else:
                found.append(TransitionRead(region_id, replica, record, stat.version))
        elif isinstance(result, NoNode):
            found.append(TransitionRead(region_id, replica, None, -1))
        else:
            assert isinstance(result, OperationError), result
            troubles.append(f"{result.path}: {result}")
    return found, troubles
