"""`rk drill freeze`: a forecast of the effects of a pause of one process, compared with the facts.

forecast.py     the forecast and its comparison; pure
situation.py    reads the facts for the forecast from the cluster, and observes the events

The drill itself is `cli/drill/scenarios/freeze.py`.
"""
