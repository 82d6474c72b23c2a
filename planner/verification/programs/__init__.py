"""Programs that run in a process of their own, with a training framework; they import nothing of the planner.

Each reads a task (a JSON file whose path is its only argument) and prints its findings as one line of JSON.
"""
