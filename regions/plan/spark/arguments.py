"""What Spark says when it fails, in one sentence that tells somebody what to do.

Spark's exceptions are pages of Java and Python; the cause is somewhere inside. The rows below are looked for in order;
what none of them knows is told by its first line that says anything.
"""

# ruff: noqa: N818

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from regions.plan.problem.model import BadInput, PlanError

#: Longest piece of Spark's own words that is repeated.
SAID_MAX: Final = 500


class NoSpark(PlanError):
    """Java, PySpark or the Spark cluster is not there; `greedy` and `sharded` need none of them."""


class SparkFailed(PlanError):
    """Spark gave up."""


def _unseen(found: re.Match[str]) -> PlanError:
    return BadInput(f"Spark's executors do not see {found[1]}: input must lie on storage that all of them share")


def _unreadable(found: re.Match[str]) -> PlanError:
    return BadInput(f"an input file cannot be read: {found[0]}")


def _no_number(found: re.Match[str]) -> PlanError:
    return BadInput(f"an input file has a cell that is no number: {found[1]}")


def _no_text(found: re.Match[str]) -> PlanError:
    return BadInput(f"an input file has a text that is not UTF-8: {found[1]}")


def _module(found: re.Match[str]) -> PlanError:
    return SparkFailed(
        f"the executors' Python has no module {found[1]!r}: they need numpy, pyarrow, ortools and msgspec "
        "(spark.archives, or spark.pyspark.python)"
    )


def _interpreter(found: re.Match[str]) -> PlanError:
    return SparkFailed(
        f"the executors have no Python at {found[1]}: name theirs with the setting spark.pyspark.python=PATH"
    )


def _version(found: re.Match[str]) -> PlanError:
    return SparkFailed(
        f"the executors' Python is another one: {' '.join(found[0].split())} (setting spark.pyspark.python)"
    )


#: Pattern -> the error that it stands for, the surest first.
CAUSES: Final[tuple[tuple[str, Callable[[re.Match[str]], PlanError]], ...]] = (
    (r"No module named '([\w.]+)'", _module),
    (r"exact plans need (ortools)", _module),
    (r'Cannot run program "([^"]+)"', _interpreter),
    (r"Python in worker has different version[^\n]*", _version),
    (r"(?:PATH_NOT_FOUND\] Path does not exist: |FileNotFoundException: (?:File )?)(\S+)", _unseen),
    (r"\[(?:CAST_OVERFLOW|CAST_INVALID_INPUT|USER_RAISED_EXCEPTION)\]\s*([^\n]*)", _no_number),
    (r"Wrapping ([^\n]*) failed", _no_text),
    (r"[^\n]*(?:MALFORMED_RECORD|FAILED_READ_FILE|CANNOT_READ_FILE)[^\n]*", _unreadable),
)


def told(error: Exception) -> PlanError:
    """The error to raise for what Spark raised."""
    text = str(error)
    for pattern, make in CAUSES:
        if found := re.search(pattern, text):
            return make(found)
    return SparkFailed(first_words(text) or type(error).__name__)


def first_words(text: str) -> str:
    """The first line that says anything, without the class that it comes from."""
    for line in text.splitlines():
        words = re.sub(r"^:?\s*((\w+\.){2,}\w+(Exception|Error): )?", "", line.strip())
        if words and not words.startswith("An error occurred while calling"):
            return words[:SAID_MAX]
    return ""
