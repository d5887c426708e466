"""Files of many copies: where they are, and how they come to a site."""
