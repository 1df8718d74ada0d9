"""Raft as a pure core: messages and ticks go in, messages, entries and state come out.

The core (`RaftCore`) never waits, never reads a clock and never touches disk or network. The program that drives it is
called the shell. The shell owns one log on disk that is written in order (FIFO), and links to the peers that may lose,
repeat and reorder messages. One turn of the shell:

    step(message) / tick() / propose(data) / ...   any number, in any order
    while has_ready():
        r = ready()                                the following, for each Ready in order:
        send r.messages                            now: none of them depends on this node's disk
        write r.snapshot, r.hard_state, r.entries  queued behind earlier writes; entries replace what the log on disk
                                                   holds from entries[0].index on
        apply r.committed                          may come before this node's own write: a majority holds them
    when the disk has finished everything up to and including Ready `r`:
        persisted(r.number)
        send r.messages_after_persist

Rules that keep the group safe:

- `messages_after_persist` leave only when all writes of this *and of every earlier* Ready are durable. They carry
  votes and acknowledgments, and Raft §5.1 requires term, vote and log on stable storage before the reply leaves. Such a
  Ready may have nothing to write itself; it still waits for earlier ones. If no write is pending, the messages leave at
  once.
- `persisted` may skip numbers: `persisted(7)` covers 1..7. Readies without writes need no call.
- A Ready with a `snapshot` replaces the state machine by the snapshot that the shell received with the SNAPSHOT
  message, and restarts the log on disk after `snapshot.index`. The shell has verified the payload before it passed the
  message to `step`. No part of a later Ready may be applied or written before that.
- The shell restarts a node only from what its disk holds.

Time is ticks. Order is decided by ids and counters, never by the iteration order of a set.

Reading order: `messages` (the vocabulary), `log`, `core`, then `follower` and `leadership` for the two ends of
replication with `progress`, `quorum` and `reads`, then `membership`. `output` assembles the Readies, `bounds` rejects
impossible messages, `trace` records a node's promises and checks them. From outside, use RaftCore, RaftConfig, what
`messages` and `membership` define, and `trace`.
"""
