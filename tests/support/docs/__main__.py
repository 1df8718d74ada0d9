"""Write the generated pages: `make docs`, or `python -m tests.support.docs`."""

from __future__ import annotations

import sys

from tests.support.docs.pages import PAGES
from tests.support.sources import ROOT


def main() -> None:
    """Write each page whose text has changed, and print its name."""
    for name, make in PAGES.items():
        page = ROOT / name
        text = make()
        if not page.exists() or page.read_text() != text:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text)
            sys.stdout.write(f"wrote {name}\n")


if __name__ == "__main__":
    main()
