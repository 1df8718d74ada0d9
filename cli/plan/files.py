"""Plan directories, opened with every possible check."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.common.errors import CliError, NotFoundError, UsageFaultError
from regions.plan import BadInput, BadPlan, ConflictingRegion, NoServers, Params, Plan, PlanError, PlanVerdict, Snapshot
from regions.plan.artifact.files import MANIFEST, PlanManifest, read_input, read_plan
from regions.plan.artifact.verify import judge
from regions.plan.problem.numbered import NumberedProblem, encode

DEFAULT_DIR: Final = Path("rk-plan")
#: Characters of a long id that are shown for a server without a name.
_ID_SHOWN: Final = 8
_ID_WHOLE: Final = 24


@contextlib.contextmanager
def plan_errors(source: Path | None = None) -> Iterator[None]:
    """Turn errors of planning into one clear line.

    `source`: the directory that the command line names as input. If its content allows no plan, the command line is
    wrong.
    """
    try:
        yield
    except (BadInput, ConflictingRegion, NoServers) as error:
        if source is not None:
            raise UsageFaultError(
                f"no plan: {error}", f"Correct the input in {source}; docs/planning.md describes it."
            ) from error
        raise _of_cluster(error) from error
    except BadPlan as error:
        raise CliError(f"the plan is invalid: {error}", "Make a new one: rk plan create.") from error
    except PlanError as error:
        raise CliError(f"no plan: {error}") from error


def _of_cluster(error: PlanError) -> CliError:
    hint = ""
    if isinstance(error, NoServers):
        hint = "Draining servers and servers with weight 0 take no regions: `rk server list`."
    return CliError(f"no plan: {error}", hint)


class Artefact:
    """A plan with its manifest and its input."""

    def __init__(self, directory: Path, plan: Plan, manifest: PlanManifest, snapshot: Snapshot, params: Params) -> None:
        self.directory = directory
        self.plan = plan
        self.manifest = manifest
        self.snapshot = snapshot
        self.params = params
        self._problem: NumberedProblem | None = None
        self._verdict: PlanVerdict | None = None

    @property
    def problem(self) -> NumberedProblem:
        """Return the input as numbers. Raise PlanError."""
        if self._problem is None:
            self._problem = encode(self.snapshot, self.params, {})
        return self._problem

    @property
    def verdict(self) -> PlanVerdict:
        """Check the plan against its own input. Return the broken rules. Raise PlanError."""
        if self._verdict is None:
            self._verdict = judge(self.problem, self.plan.rows)
        return self._verdict

    def name(self, server_id: str) -> str:
        """Return the name of a server for the operator."""
        known = self.manifest.names.get(server_id, server_id)
        return known if len(known) <= _ID_WHOLE else known[:_ID_SHOWN]


def open_plan(directory: Path) -> Artefact:
    """Return a complete plan. Raise NotFoundError, BadPlan."""
    if not (directory / MANIFEST).is_file():
        what = "contains no finished plan: it has no manifest" if directory.is_dir() else "does not exist"
        raise NotFoundError(f"{directory} {what}", "`rk plan create` makes one; --output names the directory.")
    made, manifest = read_plan(directory)
    snapshot, params = read_input(directory, manifest)
    return Artefact(directory, made, manifest, snapshot, params)
