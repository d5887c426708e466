"""A simulated market: owners and customers trade by the real protocols, on virtual time."""
