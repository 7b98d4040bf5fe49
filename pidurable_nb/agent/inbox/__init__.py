"""Owns how what is asked for enters a conversation, waits, and is answered (S1 to S4). Never runs a model or a tool."""
