"""The master's policy of members: which change of a tablet's configuration comes next. Pure, stateless.

situation.py   what the policy decides from: the leader's report, servers, intents; and what follows from them
next_change.py the checks in order, as a table; one answer per tablet: do, wait, or nothing
newcomers.py   servers for new members
leaders.py     which leaders hand over so that servers lead equally many tablets
intents.py     moves, learners, retired servers: when each has ended, and what is refused
members.py     carries the decisions out for the keeper, tablet by tablet
requests.py    which requests about members are accepted

A decision is level-triggered: it follows from what is, so any master takes the same one, and taking it twice does no
harm. The leader carries it out by compare-and-set on the id of the configuration on which it rests.
"""
