"""Checks of a simulated cluster. A violation ends the run.

observer.py    after every commit of the store: legal steps, fencing, owners
history.py     the recorded history equals the store's log
standbys.py    claims of standby masters about the age of their data
raft_group.py  one Raft group: elections, log matching, commits; the simulations in tests/sim use it as well
crowding.py    new regions are spread over the servers (DD-10)
alarms.py      alarms of the auditors, counted and checked
linearizable.py linearizability of one key's history (pure)
"""
