"""Region servers: they open and close regions and hold them under a lease."""
