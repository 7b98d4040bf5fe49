"""Owns what a crash may leave on a disk, derived from one recorded life by a stated model."""
