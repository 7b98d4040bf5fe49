"""Owns the recovery of a copy, a gate at a time, forwards and back; prediction is held against behaviour."""
