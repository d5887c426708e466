"""The whole service on virtual time, with seeded faults (deterministic simulation testing)."""
