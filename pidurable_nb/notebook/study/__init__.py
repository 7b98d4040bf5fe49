"""Owns what teaches: predictions that are locked before a run, their scores, and checks with hidden seeds.

Never runs an experiment and never grades a sentence. What a notebook imports is named in `pidurable_nb.study`.
"""
