"""Owns the sweep: a crash of every kind at every point, what becomes of each, and telling it."""
