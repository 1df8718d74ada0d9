"""Bulk assignment plans: one model, several engines, one verifier."""
