"""
The HTTP interface of the service: connections, requests, authorisation, limits and rates.

A request passes ``listener``, ``http_connection``, ``app``, ``request_admission`` and ``router``,
and then its handler. ``routes`` is the table of all operations, from which routing, authorisation
and the OpenAPI document follow. There is no web framework below: see the page on the architecture.
"""
