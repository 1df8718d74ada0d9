"""The masters: one active, any number on standby, driving every region by compare-and-set."""
