"""Tests of RegionKeeper."""
