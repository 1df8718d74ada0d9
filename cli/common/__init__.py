"""What every command shares: options, connections, names, output, errors."""
