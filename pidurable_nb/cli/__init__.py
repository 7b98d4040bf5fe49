"""Owns the command line: from a shell and in CI, what the magics do in a notebook. Never decides anything itself."""

from pidurable_nb.cli.program import main

__all__ = ["main"]
