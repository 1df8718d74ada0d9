"""Helpers that several suites share. No tests here."""
