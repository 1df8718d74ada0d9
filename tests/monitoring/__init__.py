"""Alert rules and dashboard against Prometheus itself: `make test-monitoring`."""
