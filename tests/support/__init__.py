"""Helpers that several suites share. This package has no tests."""
