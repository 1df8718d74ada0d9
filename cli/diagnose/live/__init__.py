"""The full screen of `rk watch --live`.

board.py     content of the screen: regions in transition, servers, rates, latest steps; pure
controls.py  what the keys change: order, filter, pause; pure
terminal.py  reads keys without Enter, and asks all processes for their health
"""
