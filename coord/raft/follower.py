"""The receiving side of replication: a follower's handling of its leader's appends, commit indexes and snapshots.

A core has one `FollowerRole` for all its terms. It changes the log and the configurations, and returns the replies. The
core decides which messages come from the leader of its term, and when the replies may leave.
"""

from __future__ import annotations

from coord.raft.log import ConfigLog, RaftLog
from coord.raft.membership import decode_configuration
from coord.raft.messages import APPEND_RESP, CONFIG, Entry, Message, RaftEvent, RaftSnapshot
from coord.raft.output import Output, PersistQueue


class FollowerRole:
    """Processes messages of the leader of the present term. Shares log, configurations and output with its core."""

    def __init__(self, node_id: int, log: RaftLog, configs: ConfigLog, writes: PersistQueue, output: Output) -> None:
        self.id: int = node_id
        self.log: RaftLog = log
        self.configs: ConfigLog = configs
        self.writes: PersistQueue = writes
        self.output: Output = output
        #: The snapshot that replaced the log, until the next Ready passes it to the shell for installation.
        self.snapshot: RaftSnapshot | None = None

    def on_append(self, m: Message) -> Message:
        """Process an append. Return the reply, which must not leave before the log is durable."""
        log = self.log
        previous = m.prev_index
        entries = m.entries
        if previous < log.commit:
            # Late or repeated. Committed entries match already, so only the entries after them matter.
            past = log.commit - previous
            entries = entries[past:] if entries is not None else None
            previous = log.commit
        elif log.term_at(previous) != m.prev_term:
            index, term = log.find_conflict_by_term(previous, m.prev_term)
            return Message(APPEND_RESP, self.id, m.src, m.term, m.prev_index, term, match_index=index)
        verified = previous
        if entries:
            verified = entries[-1].index
            self.store(entries, m.term)
        # Not m.commit: an entry after `verified` may come from another leader and not be the committed one (Raft §5.3).
        log.commit_to(min(m.commit, verified))
        assert log.last >= verified, f"verified {verified}, the log ends at {log.last}"
        return Message(APPEND_RESP, self.id, m.src, m.term, match_index=verified, granted=True)

    def store(self, entries: list[Entry], term: int) -> None:
        """Add entries of the leader of `term` to the log. The entry before them matches."""
        log = self.log
        new = log.first_difference(entries)
        if new == len(entries):
            return
        if new:
            entries = entries[new:]
        if entries[0].index <= log.last:
            self.truncate(entries[0].index, term)
        log.extend(entries)
        for entry in entries:
            if entry.kind == CONFIG:
                # In force at once, committed or not: Raft §6.
                config = decode_configuration(entry.data)
                self.configs.append(entry.index, config, entry.term)
                self.output.events.append(RaftEvent("config", term, f"at {entry.index}: {config}"))

    def truncate(self, index: int, term: int) -> None:
        """Remove the entries from `index` on, and their configurations. They conflict with the leader's."""
        events = self.output.events
        events.append(RaftEvent("truncate", term, f"{index}..{self.log.last}"))
        self.log.truncate(index)
        self.writes.lower(index - 1)
        if self.configs.truncate(index):
            events.append(RaftEvent("config_reverted", term, str(self.configs.current)))
        assert self.configs.newest_index() < index, f"a configuration outlives its entry, truncated at {index}"

    def on_commit(self, commit: int, commit_term: int, term: int) -> None:
        """Commit up to `commit` if this log has the leader's entry there, which is of `commit_term`.

        A log that matches the leader's at one entry matches it up to there (Raft §5.3, log matching), so this commits
        only entries of the leader. `commit_term` is 0 from a leader of an older build. Such a leader sends only the
        commit index that this node has acknowledged.
        """
        log = self.log
        if commit <= log.commit:
            return
        if commit > log.last or (commit_term and log.term_at(commit) != commit_term):
            # An append was lost, or this disk lost what it had acknowledged. The leader learns that from the reply to
            # its heartbeat, or from the rejection of its next append.
            self.output.events.append(RaftEvent("commit_ahead", term, f"{commit} of a log that ends at {log.last}"))
            return
        log.commit_to(commit)

    def on_snapshot(self, m: Message) -> Message:
        """Process a snapshot whose payload the shell has received completely. Return the reply, which must not leave
        before the snapshot is installed and durable."""
        meta = m.snapshot
        assert meta is not None, "see check_message"
        log = self.log
        if meta.index > log.commit:
            if log.term_at(meta.index) == meta.term:
                log.commit_to(meta.index)  # the log has all of its entries: Raft §7, step 6 of the receiver
            else:
                # Pending writes of the old log must not count as durable parts of the new one.
                self.writes.lower(log.commit)
                log.restart(meta)
                self.configs.restart(meta.index, meta.config)
                self.snapshot = meta
                self.output.events.append(RaftEvent("snapshot_install", m.term, f"{meta.index} of term {meta.term}"))
        assert log.commit >= meta.index, f"snapshot at {meta.index}, committed {log.commit}"
        return Message(APPEND_RESP, self.id, m.src, m.term, match_index=log.commit, granted=True)
