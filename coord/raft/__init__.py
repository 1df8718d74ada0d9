"""Raft as a pure core: messages and ticks in, messages, entries and state out.

The core (`RaftCore`) never waits, never reads a clock and never touches disk or network. Whoever drives it, the
shell, owns one log on disk that is written in order (FIFO) and links to the peers that may lose, repeat and reorder
messages. One turn of the shell:

    step(message) / tick() / propose(data) / ...   any number, in any order
    while has_ready():
        r = ready()                                what follows is promised for each Ready, in order
        send r.messages                            now: none of them depends on this node's disk
        write r.snapshot, r.hard_state, r.entries  queued behind earlier writes; entries replace what the log on disk
                                                   holds from entries[0].index on
        apply r.committed                          may precede the own write: a majority holds them
    when the disk has finished everything up to and including Ready `r`:
        persisted(r.number)
        send r.messages_after_persist

Rules that make it safe:

- `messages_after_persist` leave only when all writes of this *and of every earlier* Ready are durable. They carry
  votes and acknowledgements: Raft §5.1 wants term, vote and log on stable storage before anybody hears of them. A
  Ready whose list is not empty may have nothing to write itself: it still waits for those before it. When nothing is
  outstanding it waits for nothing.
- `persisted` may skip numbers: `persisted(7)` covers 1..7. Readies without writes need no call.
- A Ready with a `snapshot` replaces the state machine by the snapshot that the shell received with the SNAPSHOT
  message (the payload has been verified before the message was given to `step`) and restarts the log on disk behind
  `snapshot.index`. Nothing of a later Ready may be applied or written before that.
- The shell restarts a node from what its disk holds and from nothing else.

Time is ticks. Order is decided by ids and counters, never by the iteration order of a set.
"""
