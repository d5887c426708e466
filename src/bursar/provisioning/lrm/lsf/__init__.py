"""IBM Spectrum LSF: not run live, held to recorded outputs."""

from bursar.provisioning.lrm.lsf.lsf_adapter import LSF

__all__ = ["LSF"]
