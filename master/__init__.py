"""The masters: one active, any number on standby, driving every region by compare-and-set.

service.py   the process: sessions, leadership, one `ActiveMaster` after the other
active.py    what the active master does from winning the election to losing it
leadership/  election, fencing epoch, fenced writes, probe of the active process
catalog/     tables and regions in the store; DDL
assignment/  shells of the assigner: transition writes, orders, registry, history, balancer
plans/       bulk plans: computed, recorded, applied
standby/     watcher of the store for the mirror, and the auditor
api/         RPC requests: who answers them, and how stale an answer may be
heartbeats.py, metrics.py, settings.py, client.py (the blocking client of the masters)
"""
