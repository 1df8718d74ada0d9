"""`rk up add`: one more daemon in a running cluster of `rk up`.

growth.py    in `rk up`: chooses name and ports, and records the daemon before it starts
command.py   the command: asks `rk up`, then waits until the daemon takes part
"""
