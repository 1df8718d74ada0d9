"""Faults of a simulated shell that planted bugs switch on. A run of the sound code has none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from coord.raft.core import RaftCore
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.host.group import HEARTBEAT_TICKS


class Flaws:
    """The faults of one run; this base class has none. Tests plant bugs by subclasses (`tests/sim/tablets`)."""

    #: Names of the faults that reveal the bug soonest; empty for any.
    favours: tuple[str, ...] = ()
    #: Stale reads reveal the bug: the clients of every seed send them.
    favours_stale_reads = False
    #: Late copies of writes reveal the bug: clients of tablets that are split send many.
    favours_late_copies = False
    core_class: type[RaftCore] = RaftCore
    heartbeat_ticks = HEARTBEAT_TICKS
    # replicas and their numbers
    reopens_lost_numbers = False
    makes_voters_from_nothing = False
    ignores_damage = False
    #: The transition in the store is not asked, whether a number may begin.
    claims_nothing = False
    # rows and log
    floor_before_steady = False
    steady_mixes_states = False
    results_not_steady = False
    # tombstones
    remembers_committed = False
    forgets_tombstones = False
    # members
    promotes_carelessly = False
    # copies
    loses_results = False
    rows_not_synced = False
    deletes_before_checks = False
    log_not_copied = False
    # splits
    is_splitting = False
    is_merging = False
    merges_half_sealed = False
    lets_second_parent_go = False
    notes_kept_at_failure = False
    cleans_at_once = False
    reads_behind_seal = False
    copies_lose_seal = False

    def planted(self) -> AbstractContextManager[None]:
        """Plant the bug for the time of a run."""
        return nullcontext()

    def merged(self, meta: ConsensusMeta, source_vote: int) -> ConsensusMeta:
        """Return the consensus metadata of a copy; `source_vote` is the vote of the source."""
        del source_vote
        return meta
