"""The states of a split or merge (X11), as data. Pure.

    (none) -> PREPARING -> CLOSING -> CLEANING -> (deleted)

Up to the step `replaced` nothing has changed, and the work may be canceled: the parents are open, or are opened again.
The step `replaced` is one multi: it sets the parents to REPLACED and creates the daughters, so the key space of the
table is whole at every zxid. From then on the work cannot be canceled.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from coord import errors
from regions.records.acts.resharding import ReshardingState


class ReshardingStep(NamedTuple):
    """A legal step of `/reshardings/<region id>`; None: the znode does not exist."""

    before: ReshardingState | None
    event: str
    after: ReshardingState | None
    when: str


_S: Final = ReshardingState

# fmt: off
RESHARDING_STEPS: Final[tuple[ReshardingStep, ...]] = (
    ReshardingStep(None,         "accepted",        _S.PREPARING, "an operator or a setting of the table wants it"),
    ReshardingStep(_S.PREPARING, "prepared",        _S.CLOSING,   "the rows are copied, or a tablet waits no more"),
    ReshardingStep(_S.PREPARING, "canceled",        None,         "it is not possible any more, or took too long"),
    ReshardingStep(_S.CLOSING,   "canceled",        None,         "the table is disabled; not all seals in time"),
    ReshardingStep(_S.CLOSING,   "replaced",        _S.CLEANING,  "same multi: parents REPLACED, daughters created"),
    ReshardingStep(_S.CLEANING,  "files removed",   None,         "the daughters are open with files of their own"),
    ReshardingStep(_S.CLEANING,  "made",            None,         "tablets: every member of the daughters is made"),
    ReshardingStep(_S.CLEANING,  "table deleted",   None,         "the files are removed with the table's"),
)
# fmt: on

_TABLE: Final = {(step.before, step.event): step.after for step in RESHARDING_STEPS}


class InvalidReshardingStep(errors.InvalidTransition):
    """Raised for a step that the table lacks. Nothing has been written."""


def resharding_after(before: ReshardingState | None, event: str, *, subject: str) -> ReshardingState | None:
    """Return the state after `event`.

    Raises:
        InvalidReshardingStep: the event is not legal in this state; `subject` is the first parent's id.
    """
    if (before, event) not in _TABLE:
        raise InvalidReshardingStep(f"the resharding of {subject}", "(none)" if before is None else before.value, event)
    return _TABLE[before, event]


def as_markdown() -> str:
    """Return the table as a part of docs/transitions.md (`regions/transitions/diagrams.py`)."""
    lines = [
        "## Splits and merges",
        "",
        "From `regions/transitions/resharding.py`. [splits.md](splits.md) describes what happens in each state.",
        "",
        "| from | event | to | when |",
        "| --- | --- | --- | --- |",
    ]
    for step in RESHARDING_STEPS:
        before = "(none)" if step.before is None else step.before.value
        after = "(deleted)" if step.after is None else step.after.value
        lines.append(f"| {before} | {step.event} | {after} | {step.when} |")
    return "\n".join(lines) + "\n"
