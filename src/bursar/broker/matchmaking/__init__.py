"""The resource broker of Cavalieri et al. (2003): which site a job is sent to."""
