"""Owns the extensions that come along. Each uses only what anybody may use."""
