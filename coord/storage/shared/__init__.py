"""The shared log: one write-ahead log and one sync for all Raft groups of a region server.

items.py      what a group writes in a turn, and what a log holds when it is opened
codec.py      the log's items as bytes (pure)
batch.py      changes of slots, checked and encoded (pure)
index.py      the durable state of every slot, and where its entries are (pure)
trails.py     which slots the latest records hold, stated again behind them (pure)
log.py        the log, open for appending
recovery.py   reading the log, and which slots damage concerns
loading.py    the entries of one slot, read back
listing.py    what a slot has written, for people

Records, seals, segments, torn tails and the extent are those of a store node's log (`coord.storage`). A segment is

    wals/<number:016x>.log       header, header, record*, [seal note] zeros

Guarantees, besides those of `coord.storage`:

- A turn's batch for which `write` has returned survives a power cut, for all groups in it. Another one survives whole
  or not at all.
- Damage costs the slots that have lost something, and these only. It is reported at each start until they are dropped.
- A segment goes as soon as no slot has an entry in it behind its floor.
"""
