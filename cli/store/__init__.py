"""`rk coord`: run a node, its members, its files, backups, traces."""
