"""Docstrings and comments of the source tree, drawn at random, to be read with a stranger's eyes.

    python -m tests.support.prose_sample 7          40 texts, drawn with seed 7
    python -m tests.support.prose_sample 7 100      100 texts

A draw of a commit is always the same. Rewrite each text that must be read twice, with others of its kind.
"""

from __future__ import annotations

import ast
import io
import random
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.sources import ROOT, text_files

COUNT: Final = 40
#: Shorter texts are labels, and marks for linters.
_WORDS_MIN: Final = 4

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring; a class or a function has its name before the text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _Documented) and (text := ast.get_docstring(node)):
            name = "" if isinstance(node, ast.Module) else f"{node.name}: "
            yield node.body[0].lineno, name + text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each comment. Comments on lines that follow each other are one text."""
    start, end, text = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, said = token.start[0], token.string.lstrip("#: ")
        if line == end + 1 and token.line.lstrip().startswith("#"):
            end, text = line, f"{text} {said}"
            continue
        if text:
            yield start, text
        start, end, text = line, line, said
    if text:
        yield start, text


def prose(path: Path) -> list[str]:
    """Return the texts of a Python file, each with its place."""
    source = path.read_text()
    place = path.relative_to(ROOT)
    found = sorted([*docstrings(source), *comments(source)])
    return [f"{place}:{line}  {text}" for line, text in found if len(text.split()) >= _WORDS_MIN]


def main(seed: int, count: int = COUNT) -> None:
    """Print the texts of a draw."""
    texts = [text for path in text_files() if path.suffix == ".py" for text in prose(path)]
    drawn = random.Random(seed).sample(texts, count)
    sys.stdout.write("\n\n".join([*drawn, f"{count} of {len(texts)} texts, seed {seed}\n"]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
