"""Records of drills in the cluster.

journal.py      writes the record of a running drill
history.py      reads and shows the records: `rk drill list`, `rk drill show`
page.py         the page of some runs: `rk drill … --html`
"""
