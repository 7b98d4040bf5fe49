"""Owns what is shown in a cell: each view as markup, as text and as data. Never reads a store and runs nothing."""
