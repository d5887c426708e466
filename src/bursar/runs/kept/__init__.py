"""Runs that one keeps: their labels and tasks, comparing two, and deleting old ones."""
