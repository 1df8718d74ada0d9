"""Tablets, as a master decides about them. Pure; the tables here are the whole of the decisions.

keeper.py           decides about all tablets for one tenure: events in, effects out
tablet.py           its entities; effects.py: what the master is to carry out
member_orders.py    orders that are sent until the store shows their outcome
config.py           how many members a tablet may have, the first configuration, what a later one may change
creation.py         storage of a new table, what stands against it, its regions' first members
siting.py           servers for the members of a new tablet
reports.py          folding of reports: an older one changes nothing
heartbeat_steps.py  what follows from one replica's report (HB-15)
health.py           how a tablet fares
recovery.py         what a member's transition needs next, given which servers are alive
policy/             which change of a tablet's members comes next; intents of operators
guards.py           in which order a server checks an OPEN and a CLOSE, and what it answers

The committed configuration of the Raft group is the only truth about members. No decision here claims membership.
"""
