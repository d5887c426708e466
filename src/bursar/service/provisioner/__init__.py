"""Brings the workers that agreements are owed and that shared tasks wait for."""
