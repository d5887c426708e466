"""The resource broker of Cavalieri et al. (2003) chooses the site of each job."""
