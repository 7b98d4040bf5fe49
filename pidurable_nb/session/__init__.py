"""Owns the mutation line of a store: blocks, groups, documents, publications and watches. Never knows what a run is."""
