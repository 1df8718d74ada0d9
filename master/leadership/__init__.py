"""Who is active, and that nobody else's writes count.

election.py       the race for /active and the fencing epoch
fence.py          every write is a multi that begins with a check of the epoch
identity.py       uuid and start code of this master
active_probe.py   a standby probes the active master's process
store_session.py  the active master while its store session is suspended
"""
