"""`rk debug`: the files of stopped daemons, in words; bundle/: `rk debug bundle`."""
