"""Owns what a user interface is told, commit by commit (V4). Never writes."""
