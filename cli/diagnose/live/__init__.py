"""The full screen of `rk watch --live`.

board.py     content of the screen: regions in transition, servers, rates, latest steps; pure
controls.py  the keys and their effects: order, filter, pause; pure
terminal.py  reads keys without Enter, and asks all processes for their health
"""
