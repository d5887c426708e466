"""End-to-end envelopes: what a service routes and cannot read."""
