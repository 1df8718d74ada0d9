"""How a command sends requests to the processes of a cluster, and how it reports their errors.

store.py      the store that the shared options name: its address, a session, messages for its errors
servers.py    requests to region servers, to one or to many at once
refusals.py   messages for requests that a master or a server has rejected
"""
