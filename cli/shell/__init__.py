"""What the command line is to a shell: clusters by name (context), completion of the line, names that it offers."""
