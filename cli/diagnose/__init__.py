"""Commands that inspect a cluster: status, watch, why, history, fsck, audit."""
