"""Links between region servers: one connection per direction and pair of servers, for all tablets.

interfaces.py   what the links report to the host of the tablets
hello.py        the frame with which a connection begins, and the frame that carries all others (pure)
links.py        all links of a server
dialing.py      the outgoing side: addresses of a server, back-off
accepting.py    the incoming side: checks of hellos
channel.py      a connection for a copy, used by a thread
own_server.py   the identity of this server, shared by both sides
questions.py    questions to other servers, on the port where they take requests
cuts.py         drills cut the links through the admin port
complaints.py   warnings about peers, each logged once

Authentication, framing, sockets and the reactor are those of the store's links (`coord.peers`).
"""
