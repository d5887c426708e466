"""
Finds the copies of logical files and brings the files to sites.

- :mod:`bursar.replicas.catalogue` says where copies are.
- :mod:`bursar.replicas.storage` and :mod:`bursar.replicas.site_storage` keep files at a site.
- :mod:`bursar.replicas.stager` brings the files that jobs need.
"""
