"""Commands for the security of a cluster. certs.py: `rk certs`, credentials of daemons and users."""
