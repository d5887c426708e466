"""Flux: not run live, held to recorded outputs."""

from bursar.provisioning.lrm.flux.flux_adapter import Flux

__all__ = ["Flux"]
