"""Everything that happens by chance follows from one number."""

import random


def seeded_random(seed: int, concern: str) -> random.Random:
    """A source of chance for one concern of a simulation, whatever others draw."""
    return random.Random(f"{seed} {concern}")
