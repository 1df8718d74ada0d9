"""`rk coord`: run a node, its members, files, backups and traces."""
