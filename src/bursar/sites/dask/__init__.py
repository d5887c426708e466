"""
A Dask cluster that somebody has already, as a site.

``site`` speaks the site protocol, ``carrier`` hands jobs to one Dask worker, ``bench`` is what
runs over there.
"""
