"""`rk coord check-trace`: check the Raft traces of the nodes of a store.

Exit status: 0 no violation, 1 a rule was violated, 2 a wrong command line or no trace.
"""

from __future__ import annotations

from pathlib import Path

import click

from cli.common.errors import ExitStatus, UsageFaultError
from cli.common.options import Globals, global_options
from cli.common.output import count, print_json
from coord.server.admin.trace_file import TraceFaultError, check_traces

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("check-trace")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=_FILE)
@global_options
@click.pass_obj
def check_trace(given: Globals, files: tuple[Path, ...]) -> int:
    """Check the traces of all nodes of one store against a small model of Raft.

    \b
    The files are those that `rk coord run --trace FILE` writes: one per node, over all its restarts. The rules: each
    term has at most one leader; a node votes at most once per term; logs that agree at an entry agree before it; the
    commit index never falls, and committed entries never differ; a leader holds all entries committed before its
    term; votes and acknowledgements survive restarts.
    """
    try:
        model = check_traces(list(files))
    except TraceFaultError as fault:
        if given.json:
            print_json({"holds": False, "file": str(fault.path), "line": fault.line, "fault": fault.text})
        else:
            click.echo(f"{fault}")
        return ExitStatus.REFUSED
    except OSError as error:
        raise UsageFaultError(f"{error.filename}: {error.strerror}") from error
    leaders = model.leaders()
    if not model.counts["start"]:
        raise UsageFaultError("these files contain no node's trace", "Start the nodes with --trace FILE.")
    if given.json:
        print_json(
            {
                "holds": True,
                "starts": model.counts["start"],
                "committed": model.committed(),
                "leaders": {str(term): node for term, node in leaders.items()},
                "events": dict(sorted(model.counts.items())),
            }
        )
        return 0
    events = sum(model.counts.values())
    click.echo(
        f"holds: {count(events, 'event')} of {count(model.counts['start'], 'start')},"
        f" committed up to {model.committed()}, {count(len(leaders), 'leader')}"
    )
    for term, node in leaders.items():
        click.echo(f"  term {term}: node {node}")
    return 0
