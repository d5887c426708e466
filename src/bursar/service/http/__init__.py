"""
The HTTP interface of the service: connections, requests, authorisation, limits and rates.

A request passes ``http_connection``, ``app``, ``request_admission`` and ``routes``, and then one of
the ``handlers``. ``routes`` is the table of all operations, from which routing, authorisation
and the OpenAPI document follow. There is no web framework below: see the page on the architecture.
"""
