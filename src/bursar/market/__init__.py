"""
This room keeps the money of runs: ledger, leases, deals, and what happens near the budget.

- The ledger, the leases and the spending guard admit tasks within a run's budget.
- :mod:`bursar.market.trade_server` and :mod:`bursar.market.trade_manager` are the owner's and the
  buyer's side of a deal; :mod:`bursar.market.negotiation` has the protocols between them.
- :mod:`bursar.market.accounts` keeps accounts of users and providers over all runs.
"""
