"""Owns what makes the task machine an agent: conversations, submissions, and the three built-in kinds of task.

Never knows Jupyter, and never schedules: the engine does, by verdicts that the functions here refine.
"""
