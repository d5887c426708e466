"""Records of a run in formats that other tools read."""
