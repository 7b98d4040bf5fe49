"""Owns what stands between an answer and its tools: which calls there are, and what became of them. Never runs one."""
