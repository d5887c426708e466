"""
The library: plan a campaign, run it, or hand tasks to an executor.

The names to use are those of the package itself: ``bursar.plan``,
``bursar.run``, ``bursar.resume``, ``bursar.Executor``.
"""
