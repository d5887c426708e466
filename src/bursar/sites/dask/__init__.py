"""
An existing Dask cluster serves as a site.

``dask_site`` implements the site protocol, ``job_executor`` sends jobs to one Dask worker, and
``sidecar`` runs them there.
"""
