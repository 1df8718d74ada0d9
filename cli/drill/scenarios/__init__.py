"""The drills, one module each: inject a fault, wait, measure, check.

server_crash.py is the shortest. tablets/ has the drills of tablets. ddl_stress.py has its clients in ddl_clients.py.
"""
