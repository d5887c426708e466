"""Flux adapter: not run live, tested on recorded outputs."""

from bursar.provisioning.lrm.flux.flux_adapter import Flux

__all__ = ["Flux"]
