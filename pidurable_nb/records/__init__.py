"""Owns everything that is stored, as frozen dataclasses. Never does I/O; only `codec` knows names on disk."""
