"""`rk up add`: one more daemon in a running cluster of `rk up`; and store nodes that leave the cluster.

growth.py    in `rk up`: chooses name and ports, and records the daemon before it starts
rights.py    in `rk up`: what masters and region servers prove to the store
leaving.py   in `rk up`: stops starting store nodes that were removed (`rk coord remove`)
command.py   the command: asks `rk up`, then waits until the daemon takes part
securing.py  gives credentials to the daemons of an open cluster
"""
