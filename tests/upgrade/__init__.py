"""Upgrades with two real builds: processes of an older checkout and of this one work together (`make test-upgrade`)."""
