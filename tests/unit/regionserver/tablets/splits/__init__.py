"""Tests of splits of tablets on their servers."""
