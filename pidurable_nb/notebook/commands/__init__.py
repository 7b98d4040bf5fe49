"""Owns the `%pi` magic: a module for each family of subcommands, and what they share."""
