"""Shared by all commands: options, connections, names, output, errors; asking/ sends requests, views/ shows lists."""
