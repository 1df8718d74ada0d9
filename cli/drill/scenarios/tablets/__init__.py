"""The drills of tablets.

leader_kill.py has what all drills use: it chooses a server that leads, and waits for new leaders. healing.py has the
parts of drills that continue until tablets are whole again on other servers.
"""
