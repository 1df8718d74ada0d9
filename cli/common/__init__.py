"""Shared by all commands: options, connections, names, output, errors."""
