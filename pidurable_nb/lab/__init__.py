"""Owns the laboratory: looking into stores, crashing them on purpose, and saying why recovery does what it does.

Never knows Jupyter, and decides nothing that the engine decides.
"""
