"""Who asks, and whether it is true: tokens, certificates, and the authority that makes them."""
