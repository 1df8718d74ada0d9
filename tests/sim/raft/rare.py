"""Rare situations in which bugs hide. A simulation that never reaches one proves nothing about it, so each is counted.

The seeds of `make test` reach those of MET. A soak of `ENOUGH` seeds or more fails if any count stays at 0.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

#: Number of seeds that should reach every situation.
ENOUGH: Final = 400

#: Situations of bare Raft groups (`tests.sim.raft`).
GROUP_MET: Final = (
    *("bridge", "change", "change_refused", "compaction", "competing_candidates", "config_reverted", "crash_in_step"),
    *("deafened", "echo", "election_lost", "isolation", "lost", "old_messages", "one_way_cut", "partition", "pause"),
    *("promote", "quorum_lost", "rejected", "repeated", "slow_sync", "snapshot_install", "torn_write", "transfer"),
    *("transfer_failed", "transfer_lost", "truncate", "vote_ignored"),
)

#: Situations of whole stores and their clients (`tests.sim.store`).
STORE_MET: Final = (
    # faults
    *("bit_flip", "bridge", "client_cut", "client_vanished", "clock_drift", "clock_jump", "crash_in_step"),
    *("disk_error", "disk_full", "failed_sync", "flap", "given_up", "hand_over", "isolation", "kill", "late_bytes"),
    *("leader_lost", "one_way_cut", "parted_from_leader", "partition", "pause", "power_cut", "power_cut_all", "reset"),
    *("slow_sync", "torn_write"),
    # sessions and clients
    *("attached", "auth", "closed", "connection_loss", "createContainer", "createTTL", "events", "expired", "getACL"),
    *("moved", "read_only", "reaped", "session_expired", "setACL", "setWatches2", "sync", "two_connections"),
    # Raft in whole nodes
    *("competing_candidates", "election_lost", "joined", "quorum_lost", "rejected", "resent", "snapshot"),
    *("snapshot_install", "snapshot_offer", "state_taken_over", "transfer", "truncate", "vote_ignored"),
    # damage that a node finds at its start, and its consequence
    *("repaired", "stopped_by_disk", "torn_tail"),
    # members
    *("change_begun", "configurations", "found_nobody", "promote", "removal_noticed", "wiped_outsider"),
    *("membership_granted", "membership_refused"),
    # upgrades
    *("build_downgraded", "build_upgraded", "level_raised", "level_refused_at_start"),
)

#: Rarer situations: only a soak reaches them reliably.
STORE_RARE: Final = ("change_given_up", "config_reverted", "left", "member_again", "start_failed", "transfer_failed")


def missed(counts: Counter[str], names: tuple[str, ...]) -> list[str]:
    """Return those of `names` that never occurred."""
    return [name for name in names if not counts[name]]
