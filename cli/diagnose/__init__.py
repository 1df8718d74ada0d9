"""Commands that inspect a cluster: status, watch (live/), why (why/), health, fsck, audit, and the past (past/)."""
