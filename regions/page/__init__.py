"""The contents of the live page that masters serve: its data, and the messages to its listeners. Pure.

    rows.py    a replica as one row: state, server, since when
    model.py   THE ARRAYS of all rows; changes are coalesced into deltas
    parts.py   the messages made of them: parts of a snapshot, deltas
    replay.py  the latest deltas, for a listener that reconnects
    pace.py    how much of the process the page may take
    curves.py  ring buffers of one value per second

`master/page` fills the model from the cluster state and sends parts and deltas to browsers.
"""
