"""
Money: the ledger, leases and what they cost, and what happens near the budget.
"""
