"""Tests of tablets in the active master."""
