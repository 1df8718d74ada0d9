"""Command-line arguments that several benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path


def parts_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the type of an option whose value is a comma-separated list of `known` parts. The order of `known` is
    kept."""

    def parts(text: str) -> list[str]:
        named = [one.strip() for one in text.split(",") if one.strip()]
        unknown = [one for one in named if one not in known]
        if unknown or not named:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: give some of {', '.join(known)}")
        return [one for one in known if one in named]

    return parts


def positive(text: str) -> int:
    """Return the text as a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def made_folder(text: str) -> Path:
    """Return the folder with that path. It is made if it is missing."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot make the folder {path}: {error.strerror}; give another") from None
    return path
