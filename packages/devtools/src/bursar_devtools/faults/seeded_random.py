"""Derives all randomness of a simulation from its seed."""

import random


def seeded_random(seed: int, concern: str) -> random.Random:
    """Return a random source for one concern, independent of draws for others."""
    return random.Random(f"{seed} {concern}")
