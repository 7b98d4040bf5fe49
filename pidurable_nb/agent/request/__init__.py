"""Owns what a model is sent: the context, its order, the prompt, what may be cut. Never asks a model."""
