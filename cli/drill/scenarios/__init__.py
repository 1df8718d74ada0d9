"""The drills, one module each: inject a fault, wait, measure, check.

server_crash.py is the shortest; tablet_leader_kill.py has what the drills of tablets share; ddl_stress.py has its own
clients in ddl_clients.py.
"""
