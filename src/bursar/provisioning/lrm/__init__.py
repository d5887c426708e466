"""Adapters to local resource managers: what each can do, behind one interface."""
