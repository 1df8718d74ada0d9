"""`rk simulate`: whole clusters in simulated time, from seeds; a failed run becomes a file that repeats it.

Tablets are simulated by tablets/simulate.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn

import click
import msgspec
from click.core import ParameterSource
from twisted.logger import globalLogBeginner

from cli.common.errors import CliError, ExitStatus, UsageFaultError
from cli.common.options import Globals, NumberRange, own_masters_options
from cli.common.output import console, count, invocation, print_json, shown
from cli.tablets.simulate import TabletsPlan, simulate_tablets
from coord.security import process
from simulation.cluster.cluster import Options
from simulation.drills import DRILLS
from simulation.run import BadRecordingError, Recording, RunVerdict, code_digest, read_recording, record, run

#: Seeds of a run without --seed and --seeds.
SEEDS_DEFAULT: Final = range(1, 21)
SEEDS_MAX: Final = 1_000_000
#: Interval of progress lines.
LOG_EVERY_S: Final = 2.0
FOLDER: Final = Path("rk-simulations")


class SimulationReport(msgspec.Struct):
    """The report of `--json`."""

    ok: bool
    drill: str
    seeds: int
    failed: list[RunVerdict]
    #: Files of the failed runs, in the order of `failed`.
    files: list[str]
    simulated_s: float
    took_s: float
    #: Counts over all runs: steps of transitions, faults, operators' requests.
    counts: dict[str, int]


def _seeds(text: str) -> range:
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text.strip())
    if found is None:
        raise UsageFaultError(f"--seeds {text!r} is not a range", "Write it as --seeds 1..100.")
    first = int(found[1])
    last = int(found[2] or found[1])
    if last < first or last - first >= SEEDS_MAX:
        raise UsageFaultError(f"--seeds {text} is empty or too long", "Write it as --seeds 1..100, the smaller first.")
    return range(first, last + 1)


@click.command()
@click.option("--seed", type=click.IntRange(0), help="One run with this seed.")
@click.option("--seeds", metavar="A..B", help="One run for each of these seeds.  [default: 1..20]")
@click.option("--tablets", is_flag=True, help="Simulate hosts of tablets instead of clusters.")
@click.option("--splits", is_flag=True, help="With --tablets: tablets are split.")
@click.option("--merges", is_flag=True, help="With --tablets: tablets are split and merged.")
@click.option("--drill", type=click.Choice(list(DRILLS)), default="random", show_default=True, help="The scenario.")
@click.option("--regions", type=click.IntRange(1, 500), help="Regions of the first table.  [default: from the seed]")
@click.option("--servers", type=click.IntRange(1, 50), help="Region servers.  [default: from the seed]")
@click.option("--masters", type=click.IntRange(1, 7), help="Masters.  [default: from the seed]")
@click.option(
    "--duration",
    type=NumberRange(1, 3600),
    default=15.0,
    show_default=True,
    help="Simulated seconds with faults; then the cluster must recover.",
)
@click.option("--replay", type=click.Path(path_type=Path, dir_okay=False), help="Repeat the run of this file.")
@click.option("--trace", is_flag=True, help="Print every event; for one run.")
@click.option("--keep-going", is_flag=True, help="Continue with the other seeds after a failed one.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    help="Directory for the files of failed runs.",
)
@own_masters_options
@click.pass_context
def simulate(
    context: click.Context,
    seed: int | None,
    seeds: str | None,
    tablets: bool,
    splits: bool,
    merges: bool,
    drill: str,
    regions: int | None,
    servers: int | None,
    masters: int | None,
    duration: float,
    replay: Path | None,
    trace: bool,
    keep_going: bool,
    folder: Path,
) -> int:
    """Simulate whole clusters: store, masters and servers with a simulated clock and network.

    The masters and region servers are the real ones. A seed determines everything: kills, freezes and cuts with their
    times, delays and losses of messages, wrong clocks. The invariants are checked after every event. Once the faults
    stop, everything must reach the requested state.

    \b
    Examples:
      rk simulate                                  20 seeds of everything at once
      rk simulate --drill server-freeze --seeds 1..200
      rk simulate --seed 17 --trace | less         every event of one run
      rk simulate --replay rk-simulations/random-17.json
      rk simulate --tablets --seeds 1..100         replicated regions: faults of processes, disks and links

    With --tablets, --splits, --merges, --seed, --seeds, --servers (3 to 5), --duration (4 unless given, 10 with
    --merges), --trace and --keep-going apply.

    Exit status 1 if an invariant was violated, or a replay differs from its file.
    """
    as_json = context.ensure_object(Globals).json
    if sum(one is not None for one in (seed, seeds, replay)) > 1:
        raise UsageFaultError("--seed, --seeds and --replay exclude each other", "Give one of them.")
    # Simulated daemons prove nothing to each other, even where the directory of a secured cluster is at hand.
    process.use(None)
    # The services' log lines are part of the trace; nothing else may print them.
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    if replay is not None:
        if tablets:
            raise UsageFaultError("--replay and --tablets exclude each other", "Repeat a run of tablets by its --seed.")
        return _replay(replay, trace=trace, as_json=as_json)
    if (splits or merges) and not tablets:
        option = "--merges" if merges else "--splits"
        raise UsageFaultError(f"{option} is for --tablets", "Add --tablets; whole clusters have --drill resharding.")
    wanted: Iterable[int] = SEEDS_DEFAULT if seeds is None else _seeds(seeds)
    if seed is not None:
        wanted = (seed,)
    if trace and seed is None:
        raise UsageFaultError("--trace is for one run", "Add --seed with the number of the run.")
    if tablets:
        given = [name for name in ("drill", "regions", "masters", "folder") if _is_given(context, name)]
        if given:
            raise UsageFaultError(f"--{given[0]} and --tablets exclude each other", "Leave one of them out.")
        faults_s = duration if _is_given(context, "duration") else None
        plan = TabletsPlan(list(wanted), servers, faults_s, splits=splits, merges=merges)
        return simulate_tablets(plan, trace=trace, keep_going=keep_going, as_json=as_json)
    base = Options(0, drill, regions or 0, servers or 0, masters or 0, duration_s=duration)
    runs = [msgspec.structs.replace(base, seed=number) for number in wanted]
    report = _run_all(runs, trace=trace, keep_going=keep_going, folder=folder)
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report.ok else ExitStatus.REFUSED


def _is_given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) is not ParameterSource.DEFAULT


def _run_all(runs: list[Options], *, trace: bool, keep_going: bool, folder: Path) -> SimulationReport:
    talk = console(stderr=True)
    report = SimulationReport(True, runs[0].drill, 0, [], [], 0.0, 0.0, {})
    began = shown_s = time.monotonic()
    for options in runs:
        verdict = run(options, click.echo if trace else None)
        report.seeds += 1
        report.simulated_s = round(report.simulated_s + verdict.simulated_s, 3)
        for what, often in verdict.counts.items():
            report.counts[what] = report.counts.get(what, 0) + often
        if not verdict.ok:
            report.ok = False
            report.failed.append(verdict)
            try:
                report.files.append(shown(record(verdict, folder)))
            except OSError as error:
                raise CliError(
                    f"seed {options.seed} failed ({verdict.violation}), but {folder} cannot be written: "
                    f"{error.strerror}",
                    "Give another --folder.",
                ) from error
            if not keep_going:
                break
        if time.monotonic() - shown_s >= LOG_EVERY_S:
            shown_s = time.monotonic()
            talk.print(f"{report.seeds} of {count(len(runs), 'run')}, {len(report.failed)} failed")
    report.took_s = round(time.monotonic() - began, 3)
    return report


def _show(report: SimulationReport) -> None:
    out = console()
    steps = sum(often for what, often in report.counts.items() if " -> " in what)
    faults = sum(often for what, often in report.counts.items() if what.startswith("fault "))
    for verdict, file in zip(report.failed, report.files, strict=True):
        out.print(f"seed {verdict.options.seed}: {verdict.violation}", markup=False)
        out.print(f"    repeat: {invocation()} simulate --replay {file} --trace", markup=False)
    what = "held" if report.ok else f"did not hold in {count(len(report.failed), 'run')}"
    out.print(
        f"{report.drill}: {count(report.seeds, 'run')}, {report.simulated_s:.0f} s simulated in {report.took_s:.1f} s, "
        f"{count(faults, 'fault')}, {count(steps, 'step')} of transitions; the invariants {what}"
    )


def _replay(path: Path, *, trace: bool, as_json: bool) -> int:
    try:
        wanted = read_recording(path)
    except BadRecordingError as error:
        _reject(str(error))
    verdict = run(wanted.options, click.echo if trace else None)
    is_same = verdict.digest == wanted.digest
    if as_json:
        print_json({"same": is_same, "verdict": verdict, "recording": wanted})
    else:
        out = console()
        out.print(f"seed {wanted.options.seed}: {verdict.violation or 'the invariants held'}", markup=False)
        out.print(_comparison(wanted, verdict))
    return 0 if is_same and verdict.ok else ExitStatus.REFUSED


def _comparison(wanted: Recording, verdict: RunVerdict) -> str:
    if verdict.digest == wanted.digest:
        return f"the same history as recorded: {verdict.events} events, digest {verdict.digest}"
    if wanted.code != code_digest():
        return "another history than recorded: the code has changed (a seed repeats a run only with the same code)"
    return "another history than recorded, with the same code: please report this, with the file"


def _reject(message: str) -> NoReturn:
    raise UsageFaultError(message, "`rk simulate` writes such files for failed runs.")
