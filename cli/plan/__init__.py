"""`rk plan`: make, show, compare, apply."""
