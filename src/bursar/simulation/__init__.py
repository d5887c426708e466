"""The world when it is not real: for now, its workloads."""
