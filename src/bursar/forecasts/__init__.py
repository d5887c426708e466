"""Forecasts of when a campaign ends and what it costs: learned, calibrated and scored."""
