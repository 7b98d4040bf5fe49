"""Owns what is read from a store file that nobody opens: what is in it, and what recovery will do with it."""
