"""Raicu, Dumitrescu and Foster (2006): acquiring processors, and a service that runs tasks."""
