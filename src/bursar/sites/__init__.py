"""
The protocol of a site, and the kinds of sites that implement the protocol.

:mod:`bursar.sites.protocol` is the protocol. :mod:`bursar.sites.local` is this machine,
:mod:`bursar.sites.batch` a cluster with a batch scheduler, ``dask`` a Dask cluster and
``remote`` another Bursar.
"""
