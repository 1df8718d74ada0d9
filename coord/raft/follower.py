"""The receiving side of replication: what a follower does with its leader's appends, commit indexes and snapshots.

A core has one `Follower` for all its terms. It changes the log and the configurations, and it returns the answers. The
core decides which messages come from the leader of its term, and when the answers may leave.
"""

from __future__ import annotations

from coord.raft.log import RaftLog
from coord.raft.membership import ConfigLog, decode_configuration
from coord.raft.messages import APPEND_RESP, CONFIG, Entry, Message, RaftEvent, RaftSnapshot
from coord.raft.persistence import Durable


class Follower:
    """Takes what the leader of the present term sends. Shares log, configurations and events with its core."""

    def __init__(
        self, node_id: int, log: RaftLog, configs: ConfigLog, durable: Durable, events: list[RaftEvent]
    ) -> None:
        self.id: int = node_id
        self.log: RaftLog = log
        self.configs: ConfigLog = configs
        self.durable: Durable = durable
        self.events: list[RaftEvent] = events
        #: The snapshot that replaced the log. The next Ready hands it to the shell, which installs it.
        self.snapshot: RaftSnapshot | None = None

    def on_append(self, m: Message) -> Message:
        """Take an append; return the answer, which must wait until the log is durable."""
        log = self.log
        previous = m.prev_index
        entries = m.entries
        if previous < log.commit:
            # Late or repeated: what is committed agrees already, look only behind it.
            past = log.commit - previous
            entries = entries[past:] if entries is not None else None
            previous = log.commit
        elif log.term_at(previous) != m.prev_term:
            index, term = log.agreement(previous, m.prev_term)
            return Message(APPEND_RESP, self.id, m.src, m.term, m.prev_index, term, match_index=index)
        verified = previous
        if entries:
            verified = entries[-1].index
            self.store(entries, m.term)
        # Not m.commit: what lies behind `verified` may be another leader's and is not what was committed (Raft §5.3).
        log.commit_to(min(m.commit, verified))
        return Message(APPEND_RESP, self.id, m.src, m.term, match_index=verified, granted=True)

    def store(self, entries: list[Entry], term: int) -> None:
        """Take the leader's entries, whose predecessor matches, into the log."""
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
                config = decode_configuration(entry.data)
                self.configs.append(entry.index, config)
                self.events.append(RaftEvent("config", term, f"at {entry.index}: {config}"))

    def truncate(self, index: int, term: int) -> None:
        """Remove the entries from `index` on, with the configurations in them."""
        self.events.append(RaftEvent("truncate", term, f"{index}..{self.log.last}"))
        self.log.truncate(index)
        self.durable.lower(index - 1)
        if self.configs.truncate(index):
            self.events.append(RaftEvent("config_reverted", term, str(self.configs.current)))

    def on_commit(self, commit: int, commit_term: int, term: int) -> None:
        """Commit up to `commit` if this log holds the leader's entry there, which has `commit_term`.

        A log that agrees with the leader's at one entry agrees up to it (Raft §5.3, log matching), so nothing is
        committed that no append of this leader has verified. `commit_term` is 0 from a leader that commits only what
        this node has acknowledged, and does not tell the term.
        """
        log = self.log
        if commit <= log.commit:
            return
        if commit > log.last or (commit_term and log.term_at(commit) != commit_term):
            # An append was lost, or this disk lost what it had acknowledged. The leader learns of it by the answer to
            # its heartbeat, or by the refusal of its next append.
            self.events.append(RaftEvent("commit_ahead", term, f"{commit} of a log that ends at {log.last}"))
            return
        log.commit_to(commit)

    def on_snapshot(self, m: Message) -> Message:
        """Take a snapshot, whose payload the shell has; return the answer, which must wait until it is durable."""
        meta = m.snapshot
        assert meta is not None, "see check_message"
        log = self.log
        if meta.index > log.commit:
            if log.term_at(meta.index) == meta.term:
                log.commit_to(meta.index)  # the log holds all of it: Raft §7, receiver's step 6
            else:
                self.durable.lower(log.commit)
                log.restart(meta)
                self.configs.restart(meta.index, meta.config)
                self.snapshot = meta
                self.events.append(RaftEvent("snapshot_install", m.term, f"{meta.index} of term {meta.term}"))
        return Message(APPEND_RESP, self.id, m.src, m.term, match_index=log.commit, granted=True)
