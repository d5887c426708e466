"""The information index: what sites say of themselves, and how old it is where it is read."""
