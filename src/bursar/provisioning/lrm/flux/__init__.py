"""Flux: not run live, held to recorded outputs."""

from bursar.provisioning.lrm.flux.adapter import Flux

__all__ = ["Flux"]
