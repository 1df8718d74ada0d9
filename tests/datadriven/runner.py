"""Transcripts as tests: text files of commands with their output.

    file    := block*
    block   := comment* command line, "----" line, output line*, blank line
    comment := "# ..."                    kept as it is

`pytest --rewrite` writes the present output into the files; the difference is then read like any other change, and
only committed when its cause is understood.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

SEPARATOR = "----"


class Block:
    """One command with the lines before it (comments, blank lines) and its expected output."""

    def __init__(self, before: list[str], command: str, expected: list[str], line: int) -> None:
        self.before = before
        self.command = command
        self.expected = expected
        self.line = line


def parse(path: Path) -> tuple[list[Block], list[str]]:
    """Return the blocks of a transcript, and the lines after the last block."""
    blocks: list[Block] = []
    before: list[str] = []
    lines = path.read_text("utf-8").splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip() or line.startswith("#"):
            before.append(line)
            at += 1
            continue
        assert at + 1 < len(lines), f"{path.name}:{at + 1}: no {SEPARATOR} behind the command"
        assert lines[at + 1] == SEPARATOR, f"{path.name}:{at + 2}: expected {SEPARATOR}"
        end = at + 2
        while end < len(lines) and lines[end].strip():
            end += 1
        blocks.append(Block(before, line, lines[at + 2 : end], at + 1))
        before = []
        at = end
    return blocks, before


def check(path: Path, run: Callable[[str], list[str]], rewrite: bool) -> None:
    """Run every command of the transcript. Compare its output, or write it to the file."""
    blocks, tail = parse(path)
    out: list[str] = []
    for block in blocks:
        actual = run(block.command)
        if not rewrite:
            assert actual == block.expected, f"{path.name}:{block.line}: {block.command}\n" + "\n".join(actual)
        out += [*block.before, block.command, SEPARATOR, *actual]
    if rewrite:
        path.write_text("\n".join([*out, *tail]) + "\n", "utf-8")
