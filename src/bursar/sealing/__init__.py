"""This room seals tasks and results into envelopes that a service routes and cannot read."""
