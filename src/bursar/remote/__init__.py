"""Another Bursar over HTTPS, from the client's side: what is said, and who says it."""
