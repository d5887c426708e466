"""Authentication of users and workers: tokens, certificates, and the authority that issues them."""
