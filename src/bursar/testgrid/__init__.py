"""Throwaway clusters under real batch schedulers, on one machine."""
