"""
The client side of another Bursar service over HTTPS.

- :mod:`bursar.remote.client` is the client, :mod:`bursar.remote.access` says how a service
  is reached and with which credentials.
- :mod:`bursar.remote.messages` has what client and service send each other.
"""
