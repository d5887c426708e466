"""What each route does, one module per noun."""
