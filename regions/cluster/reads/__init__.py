"""Which znodes must be read."""
