"""Owns the notebook: the kernel's host, the `%pi` magic, what it shows, and JupyterLab. Never decides anything.

The only room that knows Jupyter. Importing it loads nothing; `%load_ext pidurable_nb` and `pidurable-nb lab` do.
"""
