"""`make bench-plan`: bulk plans of every engine beside plain placement methods, on seeded inputs."""
