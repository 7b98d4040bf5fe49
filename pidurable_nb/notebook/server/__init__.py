"""Owns JupyterLab on the tour, as a process of its own."""
