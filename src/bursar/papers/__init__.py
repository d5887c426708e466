"""Tables and figures of the five papers, as experiments that anyone can rerun."""
