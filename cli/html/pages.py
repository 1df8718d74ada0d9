"""The engine of HTML reports: templates in, one self-contained text out; and the writing of the file."""

from __future__ import annotations

import functools
import time
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cli.common import output
from cli.common.errors import CliError

#: The style sheet of the live page, which all reports share.
_STYLE: Final = ("master.page", "assets/style.css")


def render(template: str, *, title: str, **values: object) -> str:
    """Return the report that `templates/<template>` makes of `values`. Every text in them is escaped."""
    return (
        _engine().get_template(template).render(title=title, written=output.moment(int(time.time() * 1000)), **values)
    )


def write(path: Path, text: str) -> None:
    """Write a report. Raise CliError if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}", "Give another file.") from error


@functools.cache
def _engine() -> Environment:
    engine = Environment(
        loader=PackageLoader("cli.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters.update(size=output.size, seconds=output.seconds, moment=output.moment, cut=cut)
    engine.globals.update(count=output.count, style=_style())
    return engine


def _style() -> Markup:
    package, name = _STYLE
    return Markup(files(package).joinpath(name).read_text(encoding="utf-8"))


def cut(text: str, most: int) -> str:
    """Return at most `most` characters of `text`, the last one `…` if some are missing."""
    return text if len(text) <= most else text[: most - 1] + "…"
