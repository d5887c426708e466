"""
The way in: what users say over HTTP, who may say it, how much and how fast.

``listener`` takes connections, ``app`` requests; ``routes`` is the table of all that can be
asked, from which routing, authorisation and the OpenAPI document follow.
"""
