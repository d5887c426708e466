"""The ``bursar`` command: a module per noun."""
