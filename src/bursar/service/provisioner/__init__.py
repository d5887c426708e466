"""Provisioning of workers: those owed to agreements, and those for which shared tasks wait."""
