"""How a command asks: which store it asks, region servers directly, and what becomes of a refusal.

store.py      the store that the shared options name: its address, a session with it, its errors in words
servers.py    one region server or many, asked directly
refusals.py   what a master or a server has rejected, in words for the user
"""
