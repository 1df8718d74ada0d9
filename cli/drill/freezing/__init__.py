"""`rk drill freeze`: what a pause of one process will do, said before it and compared with what happened.

forecast.py     the forecast and its comparison; pure
situation.py    reads from the cluster what the forecast needs, and observes what happens

The drill itself is `cli/drill/scenarios/freeze.py`.
"""
