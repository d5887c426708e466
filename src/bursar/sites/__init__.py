"""
This room has the protocol of a site, and the sites that implement it.

:mod:`bursar.sites.protocol` is the protocol. :mod:`bursar.sites.local` is this machine,
:mod:`bursar.sites.batch` a cluster with a batch scheduler, ``dask`` a Dask cluster and
``remote`` another Bursar.
"""
