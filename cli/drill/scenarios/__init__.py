"""The drills, one module each: inject a fault, wait, measure, check.

server_crash.py is the shortest; ddl_stress.py has its own clients in ddl_clients.py.
"""
