"""Translates Spark's exceptions into one sentence with the next step for the operator.

Spark's exceptions are pages of Java and Python, with the cause somewhere inside. The patterns below are tried in order.
If none matches, the first line with content is used.
"""

# ruff: noqa: N818

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from regions.plan.problem.model import BadInput, PlanError

#: Longest quotation of Spark's own text.
SAID_MAX: Final = 500


class NoSpark(PlanError):
    """Raised when Java, PySpark or the Spark cluster is missing. `greedy` and `sharded` need none of them."""


class SparkFailed(PlanError):
    """Raised when Spark has failed."""


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


#: Pattern -> the error that it indicates, the most certain first.
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


def as_plan_error(error: Exception) -> PlanError:
    """Return the error to raise for an exception of Spark."""
    text = str(error)
    for pattern, make in CAUSES:
        if found := re.search(pattern, text):
            return make(found)
    return SparkFailed(first_words(text) or type(error).__name__)


def first_words(text: str) -> str:
    """Return the first line with content, without the name of the exception's class."""
    for line in text.splitlines():
        words = re.sub(r"^:?\s*((\w+\.){2,}\w+(Exception|Error): )?", "", line.strip())
        if words and not words.startswith("An error occurred while calling"):
            return words[:SAID_MAX]
    return ""
