"""Changes of members in the process of a server. Decisions are in `regionserver/tablets/host`."""
