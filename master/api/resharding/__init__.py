"""Requests to split and merge regions: requests.py checks them, and writes the work that makes them durable."""
