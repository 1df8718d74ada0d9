"""The page of exit statuses, from the tables of cli/common/errors.py."""

from __future__ import annotations

from cli.common.errors import MEANINGS, MEANINGS_OF_COMMANDS
from tests.support.docs.source import GENERATED, table


def exit_codes_page() -> str:
    """Return docs/exit-codes.md."""
    general = [[str(int(status)), short, text] for status, (short, text) in MEANINGS.items()]
    special = [
        [f"`rk {command}`", str(int(status)), text]
        for command, meanings in MEANINGS_OF_COMMANDS.items()
        for status, text in meanings.items()
    ]
    lines = [
        "# Exit statuses",
        "",
        GENERATED.format("the tables of `cli/common/errors.py`"),
        "",
        "Every command of `rk` ends with one of these, and prints one line on standard error unless it is 0.",
        "",
        *table(["status", "name", "meaning"], general),
        "",
        "A time limit that ends while an accepted request is still under way (`--wait`) is status 1: the cluster"
        " answered, and the work goes on. A reader that goes away (`rk watch | head`) is status 1, too.",
        "",
        "What it says of single commands:",
        "",
        *table(["command", "status", "meaning"], special),
        "",
        "`python -m regions.plan` and `python -m regions.plan.spark_job` are programs of their own, with the statuses"
        " in [planning.md](planning.md).",
    ]
    return "\n".join(lines) + "\n"
