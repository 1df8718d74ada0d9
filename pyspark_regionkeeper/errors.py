"""The error of the data source: one line in the words of `rk`, then what to do.

Spark shows an error of a data source with the traceback of its Python process around it; the last line is this error.
`words_of` finds the line again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from cli.common.errors import CliError
from regions.records.rows.codec import RowError


class SourceError(Exception):
    """A failure that the user can act on."""


_WORDS: Final = re.compile(r"SourceError: ([^\n]+)")


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """Turn errors of the cluster and of rows into SourceError, without their own tracebacks."""
    try:
        yield
    except CliError as error:
        raise SourceError(f"{error.message}. {error.hint}" if error.hint else error.message) from None
    except RowError as error:
        raise SourceError(str(error)) from None


def about(table: str, problem: str) -> SourceError:
    """Return the error of a row's problem, which names the table once."""
    named = f"table {table!r}"
    return SourceError(problem if problem.startswith(named) else f"{named}: {problem}")


def words_of(text: str) -> str:
    """Return the words of the SourceError within Spark's text of an error; "" if there is none."""
    found = _WORDS.findall(text)
    return found[-1].strip() if found else ""


__all__ = ["SourceError", "about", "spoken", "words_of"]
