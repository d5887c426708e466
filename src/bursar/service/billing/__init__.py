"""
Billing: selling the site's processors, keeping users' accounts, deciding which tasks may run.

Deals are made by the trade server of :mod:`bursar.market`, money moves in the accounts there, and
deliveries are metered in usage records. This package makes all of these durable, and consistent
with each other.
"""

from bursar.service.billing.service_billing import ServiceBilling

__all__ = ["ServiceBilling"]
