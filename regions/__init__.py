"""The region layer's decisions. Pure: no clock, socket, file, thread or randomness anywhere below this package.

Read in this order:

    records/      tables, regions, servers and transitions as the store keeps them; znode paths and encodings
    transitions/  THE TABLE of legal steps (states.py), table states, what a transition needs next
    messages/     RPC messages between masters, servers and tools
    cluster/      the cluster state that decisions are based on; events in, effects out; history; the standby's mirror
    assign/       the assigner: observe, decide, select a server, throttle, dispatch
    liveness/     heartbeats: which servers are heard, and what they report
    balance/      the balancer
    diagnose/     fsck, invariants, `rk why`, problems
    plan/         bulk plans; also runs alone in Spark

Imports point up this list only. Masters, servers, tools and the simulation use every room; `plan` imports none of the
others.
"""
