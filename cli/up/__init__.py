"""`rk up`: a whole cluster on this machine, its supervisor and its control port; growing/: `rk up add`."""
