"""Owns what users of the package test their own work with. Never imported by the product."""
