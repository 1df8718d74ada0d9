"""The rk command."""
