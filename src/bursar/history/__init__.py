"""What ended tasks took, kept over runs: observations, their file, and other tools' logs."""
