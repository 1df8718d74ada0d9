"""What attacks cost honest clients, and what security costs."""
