"""Seals tasks and results into envelopes that a service routes and cannot read."""
