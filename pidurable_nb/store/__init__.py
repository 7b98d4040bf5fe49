"""Owns where records are kept. Never knows what a task or a document means."""
