"""Owns lives that end at a chosen point: by freezing in this process, or by a real SIGKILL in a child."""
