"""Support for shells: clusters by name (context), completion of the line, names for the completion."""
