"""
Another Bursar service serves as a site.

Its processors are bought by agreement where it sells them, and shared where it does not. One
worker of the dispatcher's stands for each pilot; what it is given runs in an instance over there,
and what becomes of it comes back, files and all, as if it had run here.
"""
