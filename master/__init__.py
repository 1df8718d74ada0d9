"""The masters: one active, any number on standby, driving every region by compare-and-set.

service.py   the process: store sessions, elections, one `ActiveMaster` per tenure
active.py    the active master, from winning the election to losing it
leadership/  election, fencing epoch, fenced writes, probe of the active process
catalog/     tables and regions in the store; DDL
assignment/  input and output of the assigner: transition writes, orders, registry, history, balancer
plans/       bulk plans: computed, recorded, applied
standby/     watcher of the store for the mirror, and the auditor
api/         RPC requests: the roles that answer them, and how stale an answer may be
tablets/     the keeper of tablets, joined to store and servers
resharding/  splits and merges of regions
access/      the check of callers, and requests about grants
page/        the live page
beginning/   the beginning of a tenure: contents of the store, first heartbeats
process.py, context.py    interfaces of a master process in every role, and of the active master to its parts
causes.py, phases.py, runs.py    the consequences of a request or timer; durations of phases, now and in the store
heartbeats.py, health.py, metrics.py, settings.py, client.py (the blocking client of the masters)
"""

# First of all: it chooses the form of the modules that may be compiled (coord/compiled.py).
import coord  # noqa: F401
