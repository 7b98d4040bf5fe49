"""Owns what is wrong with a store and a ledger: the invariants of laws and of conversations."""
