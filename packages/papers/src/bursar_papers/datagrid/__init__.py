"""Cavalieri, Monforte and Scibilia (2003): a resource broker for data grids, simulated."""
