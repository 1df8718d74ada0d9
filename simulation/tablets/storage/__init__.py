"""Storage of a simulated server with tablets: models of the shared log and of rows, and the shared log itself."""
