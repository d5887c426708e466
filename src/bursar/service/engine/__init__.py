"""
The engine of the service: instances, their tasks and results.

What happens is decided by plain data without a clock or an await (``tasks``, ``instance``,
``fairness``, ``scheduling``, ``results``); ``engine`` is the thin shell that journals and tells.
"""
