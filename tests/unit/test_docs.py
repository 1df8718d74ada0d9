"""Pages of the documentation: links are valid, and quoted texts are in the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.sources import ROOT, text_files

_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
#: A page named in code: docs/operating.md, docs/store/formats.md, benchmarks/RESULTS.md.
_NAMED: Final = re.compile(r"(?<![\w/.-])(?:docs|benchmarks)/[\w/-]+\.md")
#: A file of this repository that a page names in backquotes.
_FILE: Final = re.compile(
    r"`((?:coord|regions|master|regionserver|cli|simulation|tests|benchmarks|examples)/[\w/.-]+\.(?:py|txt))`"
)
PAGES: Final = [path for path in text_files() if path.suffix == ".md"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for line in re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines():
        if line.startswith("#"):
            title = line.lstrip("#").strip().lower().replace("`", "")
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = page if not name else (page.parent / name).resolve()
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_pages_named_in_the_source_exist() -> None:
    missing = {}
    for path in text_files():
        if names := [name for name in _NAMED.findall(path.read_text()) if not (ROOT / name).is_file()]:
            missing[str(path.relative_to(ROOT))] = names
    assert missing == {}


def test_files_named_by_pages_exist() -> None:
    missing = {}
    for page in PAGES:
        if names := [name for name in _FILE.findall(page.read_text()) if not (ROOT / name).is_file()]:
            missing[str(page.relative_to(ROOT))] = names
    assert missing == {}


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        waiting += [(page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(page.read_text())]
    assert sorted(str(page.relative_to(ROOT)) for page in PAGES if page not in seen) == []


def _literals(node: ast.AST) -> str:
    """Return the text of a string expression, with one placeholder for each inserted value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_literals(value) if isinstance(value, ast.Constant) else "\0" for value in node.values)
    if isinstance(node, ast.BinOp):
        return _literals(node.left) + _literals(node.right)
    return ""


def test_log_lines_of_the_troubleshooting_page_are_logged() -> None:
    """The source has each line that the page explains; N, M and "…" stand for inserted values."""
    page = (ROOT / "docs" / "store" / "troubleshooting.md").read_text()
    quoted = [
        text
        for line in page.splitlines()
        if line.startswith("| `")
        for text in re.findall(r"`([^`]+)`", line.split(" | ")[0])
    ]
    assert len(quoted) > 20
    sources = [path for path in text_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "coord")]
    texts = "\n".join(_literals(node) for path in sources for node in ast.walk(ast.parse(path.read_text())))
    wanted = {text: re.sub(r"\b[NM2]\b|…|\d{5,}", "\0", text) for text in quoted}
    flat = re.sub(r"%[dsr]|\{\w*\}|\d{5,}", "\0", texts)
    assert [
        text for text, literal in wanted.items() if literal not in flat and literal not in re.sub("\0+", "\0", flat)
    ] == []
