"""The drills, one module each: strike, wait, measure, check.

server_crash.py is the shortest; ddl_stress.py has clients of its own in ddl_clients.py.
"""
