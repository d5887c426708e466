"""Readers of what other tools record of tasks: texts in, observations out."""
