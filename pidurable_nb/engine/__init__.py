"""Owns the task machine: phases as users write them, what is installed, the recovery decision, scheduling, runtimes.

Never knows models, tools or prompts.
"""
