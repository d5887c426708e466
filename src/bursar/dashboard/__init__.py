"""
The page of a user's runs in the browser: what ``bursar dashboard`` serves on this machine.

Nothing is decided here. The page reads what ``runs`` and ``report`` tell of runs, and its actions
are those of ``api``.
"""
