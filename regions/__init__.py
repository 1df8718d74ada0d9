"""Decisions of the region layer. Pure: no clock, socket, file, thread or randomness in this package.

Read in this order:

    records/      tables, regions, servers and transitions as stored in znodes; paths and encodings
    transitions/  the table of legal steps (states.py), table states, the next action of a transition
    messages/     RPC messages between masters, servers and tools
    access/       which caller may send which message
    cluster/      the cluster state that decisions are based on; events in, effects out; history; the standby's mirror
    replication/  tablets: reports, recovery, creation; the keeper decides about them beside the assigner
    assign/       the assigner: observe, decide, select a server, throttle, dispatch
    liveness/     heartbeats: which servers send them, and what they report
    balance/      the balancer
    diagnose/     fsck, invariants, `rk why`, problems
    page/         what the live page shows
    plan/         bulk plans; also runs alone in Spark

A package imports only packages above it in this list. Masters, servers, tools and the simulation use all of them.
`plan` imports none of the others.
"""

# First of all: it chooses the form of the modules that may be compiled (coord/compiled.py).
import coord  # noqa: F401
