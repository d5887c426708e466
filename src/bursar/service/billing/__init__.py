"""
Billing sells the site's processors, keeps its users' accounts, and says which tasks may run.

Deals are made by the trade server of :mod:`bursar.market`, money moves in its accounts, and what
was delivered is metered in its usage records; here they become durable, and come together.
"""

from bursar.service.billing.service_billing import ServiceBilling

__all__ = ["ServiceBilling"]
