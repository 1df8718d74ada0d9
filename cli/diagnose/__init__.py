"""Commands that look: status, watch, why, history, fsck, audit."""
