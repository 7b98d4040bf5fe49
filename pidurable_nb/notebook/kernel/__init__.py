"""Owns what lives in the kernel: the thread of the harness, the desk with what is at hand, crashes and walks."""
