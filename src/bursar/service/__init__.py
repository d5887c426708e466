"""The execution service: instances, tasks and results of many users over HTTPS."""
