"""Owns the world outside of a run: what was asked of it is counted where it happens, in a ledger."""
