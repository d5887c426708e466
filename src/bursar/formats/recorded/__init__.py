"""Recorded workflows (DAX, WfFormat) as campaigns, and recorded tasks replayed as stand-ins."""
