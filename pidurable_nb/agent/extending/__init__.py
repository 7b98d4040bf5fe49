"""Owns what is installed and chosen: extensions, hooks, settings, the agent they come to. Never runs a task."""
