"""`rk plan`: create, show, compare, apply."""
