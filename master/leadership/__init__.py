"""Election of the active master, and the fencing of its predecessors' writes.

election.py       creates /active and raises the fencing epoch
fence.py          performs every write as a multi that begins with a check of the epoch
identity.py       uuid and start code of this master
active_probe.py   probe of the active master's process by a standby
store_session.py  pauses the active master while its store session is suspended
"""
