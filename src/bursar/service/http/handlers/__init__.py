"""Handlers of the routes, one module per noun."""
