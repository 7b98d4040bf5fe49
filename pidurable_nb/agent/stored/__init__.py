"""Owns the names and shapes that an agent keeps in a store: its documents, its built-in kinds of task. Runs nothing."""
