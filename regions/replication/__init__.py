"""A master's decisions about tablets. Pure; the tables in these modules contain all decisions.

keeper.py           decides about all tablets for one tenure: events in, effects out
tablet.py           its entities; effects.py: the effects that the master carries out
member_orders.py    orders that are sent until the store shows their outcome
config.py           number of members, the first configuration, changes that a later one may make
creation.py         storage of a new table, objections, first members of its regions
siting.py           servers for the members of a new tablet
reports.py          merging of reports: an older report changes nothing
heartbeat_steps.py  actions after one replica's report (HB-15)
health.py           health of a tablet
recovery.py         next step of a member's transition, given the live servers
policy/             the next change of a tablet's members; intents of operators
guards.py           a server's checks of an OPEN and a CLOSE in their order, and its answers

The committed configuration of the Raft group is the only truth about members. No decision here claims membership.
"""
