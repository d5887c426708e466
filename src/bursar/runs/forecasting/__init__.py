"""Forecasts of a run's end and cost while it goes on, their record, and what came of them."""
