"""Sockets of a store node.

reactor.py     Twisted's epoll reactor with turns: read all ready sockets, then act once
stream.py      one non-blocking TCP socket on that reactor, bounded in both directions
interfaces.py  Protocols of a node's environment: peers, snapshot job, tracer
"""
