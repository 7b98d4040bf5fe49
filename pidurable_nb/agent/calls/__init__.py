"""Owns running a tool as a durable task, and what its code may do meanwhile (E1 to E5)."""
