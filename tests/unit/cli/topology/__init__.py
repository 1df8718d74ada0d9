"""The topology file: decoding, errors, edits, command lines, units."""
