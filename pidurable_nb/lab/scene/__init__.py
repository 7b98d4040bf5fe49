"""Owns what the Lab view shows at one position of a recovery: facts, words and marks, for whatever draws them."""
