"""Rare situations in which bugs hide, counted: a simulation that never reaches one proves nothing about it."""

from __future__ import annotations

from typing import Final

#: Number of seeds that should reach every situation.
ENOUGH: Final = 300

#: Situations that the seeds of `make test` reach.
TABLETS_MET: Final = (
    # faults
    *(
        "bridge",
        "code_broken",
        "crash_in_step",
        "disk_lost",
        "echo",
        "flap",
        "freeze",
        "hand_over",
        "isolation",
        "kill",
    ),
    *("lost", "one_way_cut", "partition", "power_cut", "power_cut_all", "quick_restart", "repeated", "rows_damaged"),
    *("slot_damaged", "slow_sync", "stalled_disk"),
    # the log after a power cut, and frames of processes that were replaced
    *("former_process", "hole_in_log", "replaced_process", "unsynced_lost"),
    *("real_log_recovered", "torn_sectors"),
    # Raft
    *("election_lost", "quorum_lost", "rejected", "transfer", "truncate", "vote_ignored"),
    # answers and refusals
    *(
        "busy",
        "cas_refused",
        "does_not_exist",
        "done",
        "failed",
        "not_leader",
        "repeated_result",
        "too_stale",
        "unknown",
    ),
    *("refused_deleted", "refused_does_not_exist", "refused_failed", "refused_invalid_term"),
    # clients and steady points
    *("answer_lost", "client_gave_up", "floor_moved", "late_copy", "quick_restart_seen", "steady"),
    # changes of members
    *("change_leads", "change_stale_config", "changed", "copied", "promoted", "removed", "tombstone_vote"),
    "voter_deleted",
    # entries read back from the disk for members that were behind
    "needs_log",
)
