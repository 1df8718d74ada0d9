"""Attacks on running daemons by a stranger who knows only their ports, each beside an honest client.

Each test fails when its cure is taken away. Daemons are shared by the tests of a file.
"""
