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
    "stale_read",
    *("answer_lost", "client_gave_up", "floor_moved", "late_copy", "quick_restart_seen", "steady"),
    # changes of members
    *("change_leads", "change_stale_config", "changed", "deleted", "healed", "promoted", "removed", "tombstone_vote"),
    "voter_deleted",
    # copies: the replaced replica, their end, deaths during the copy
    *("copied", "copy_by_operator", "copy_given_up", "copy_log_short", "copy_over_replica", "copy_over_tombstone"),
    *("copy_not_given", "copy_order_repeated", "copy_source_deposed", "copy_source_gone", "copy_with_log"),
    *("crash_at_disk_step", "crash_in_copy", "crash_in_deletion", "file_damaged", "needs_copy"),
    # rows of guards.CHECKS and of startup.TABLE, by their place
    *(f"copy_check_{row}" for row in (2, 4, 6, 9)),
    *(f"start_row_{row}" for row in (2, 3, 4, 7, 10, 13, 14, 17, 18)),
    # entries read back from the disk for members that were behind
    "needs_log",
    # tablets without work
    *("quiet_leader_lost", "said_left", "said_quiet", "said_wake"),
)

#: Situations that the seeds of `make test` with splits reach.
SPLITS_MET: Final = (
    # the copy before the seal: how it ends
    *("split_prepared", "split_prepared_left", "split_prepared_useless", "split_given_up", "crash_in_prepare"),
    "commit_failed",
    # the seal
    *("seal_not_ready", "split_canceled", "split_canceled_sealed", "unsealing", "change_refused_sealed"),
    *("kill_splitting", "kill_split_leader", "power_cut_splitting"),
    # daughters
    *("heir_prepared", "heir_of_sealed_rows", "heir_waits", "heir_refused", "crash_at_heirs", "split_order_repeated"),
    # clients
    *("read_sealed", "write_sealed", "copy_at_daughter", "client_gave_up_parent"),
)

#: Situations that the seeds of `make test` with merges reach.
MERGES_MET: Final = ("merge_prepare", "merge_begun", "merged", "merge_ended")
