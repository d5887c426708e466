"""How a batch-scheduled cluster behaves: policies, reservations, free slots."""
