"""Links between processes of one kind: nodes of a store, region servers. The code for sockets and frames that both
need.

reactor.py     Twisted's epoll reactor with turns: read all ready sockets, then act once
stream.py      one non-blocking TCP socket on that reactor, bounded in both directions
framing.py     length and kind of a frame; the kinds with which every connection begins (pure)
dialing.py     the outgoing side of a link: connect, authenticate, hello, back-off
accepting.py   the incoming side: connections that must identify themselves first
guard.py       authentication of peers: shared secret, certificates
partition.py   cuts links on request, for drills
turn_loop.py   the hot part of the reactor: one poll, one call for each descriptor
"""
