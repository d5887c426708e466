"""Python calls on leased processors: their options, their thread, and other libraries' ways in."""
