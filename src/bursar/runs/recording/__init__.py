"""What runs record beside their journal, off the path of their results."""
