"""The master's policy of members: the next change of a tablet's configuration. Pure, stateless.

situation.py   facts for the decisions: the leader's report, servers, intents; conclusions from them
next_change.py the checks in order, as a table; one answer per tablet: do, wait, or nothing
newcomers.py   servers for new members
leaders.py     handovers of leadership that spread leaders evenly over the servers
intents.py     moves, learners, retired servers: when each ends, and which requests are refused
members.py     carries the decisions out for the keeper, tablet by tablet
requests.py    accepts or refuses requests about members

A decision is level-triggered: it follows from the present state, so any master decides the same, and a repeated
decision does no harm. The leader carries the decision out by compare-and-set on the id of the configuration for which
it was made.
"""
