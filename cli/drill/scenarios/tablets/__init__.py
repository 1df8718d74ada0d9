"""The drills of tablets.

leader_kill.py has what all share: choosing a server that leads, waiting for new leaders; healing.py what those share
that go on until tablets are whole again on other servers.
"""
