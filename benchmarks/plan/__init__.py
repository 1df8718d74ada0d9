"""`make bench-plan`: bulk plans of every engine beside plain ways to place, on seeded inputs."""
