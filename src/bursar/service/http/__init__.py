"""
The HTTP interface of the service: requests, authorisation, limits and rates.

``listener`` accepts connections and ``app`` handles requests; ``routes`` is the table of all
operations, from which routing, authorisation and the OpenAPI document follow.
"""
