"""A check of HTML reports: every element is closed, there is no script, and nothing is loaded from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

#: Elements without an end tag, in HTML and in the drawings of reports.
_EMPTY: Final = ("meta", "rect", "line", "circle", "polyline", "br", "hr")


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        names = {name for name, _ in attrs}
        assert not names & {"src", "href"}, attrs
        assert not any(name.startswith("on") for name in names), attrs
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _EMPTY:
            assert self.open, tag
            assert self.open.pop() == tag, tag


def check_report(text: str) -> None:
    """Fail unless `text` is a report that a stranger's data cannot turn into more than text."""
    checker = _Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "url(" not in text
    assert "@import" not in text
