"""What a terminal shows besides tables: the progress of a start, and lists that are filtered, sorted and cut."""
