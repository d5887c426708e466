"""IBM Spectrum LSF adapter: not run live, tested on recorded outputs."""

from bursar.provisioning.lrm.lsf.lsf_adapter import LSF

__all__ = ["LSF"]
