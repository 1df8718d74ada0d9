"""The metrics of daemons for Prometheus.

spans.py        durations counted in buckets, cheap enough for hot paths
definitions.py  definitions of metrics, and the families that a scrape makes of figures
turns.py        turns of a daemon's main loop: a histogram, and the names of the long ones
"""
