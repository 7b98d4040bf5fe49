"""Owns asking a model and compacting what it sees, as durable tasks (G1 to G5, K1)."""
