"""Clouds to try Bursar against: EC2 by moto with local processes, and one on the virtual clock."""
