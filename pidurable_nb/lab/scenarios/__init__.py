"""Owns the built-in scenarios, one module each. They read as lessons, and use only what any user may import."""
