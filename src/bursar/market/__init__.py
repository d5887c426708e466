"""
This room keeps the money of runs and of many users: ledger, leases, deals, and budgets.

- The ledger, the leases and the spending guard admit tasks within a run's budget.
- :mod:`bursar.market.trade_server` and :mod:`bursar.market.trade_manager` are the owner's and the
  buyer's side of a deal; :mod:`bursar.market.negotiation` has the protocols between them.
- :mod:`bursar.market.accounts` keeps the same ledger for users and providers, over all runs.
"""
