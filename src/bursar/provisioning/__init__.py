"""
Provisioning gets workers from batch schedulers and gives them back as load demands.

The method is that of dynamic resource provisioning (Raicu and others, DRP, 2007).

- :mod:`bursar.provisioning.pool` decides what to ask for and what to release.
- :mod:`bursar.provisioning.lrm` has the adapters to batch schedulers, behind one interface,
  :class:`bursar.provisioning.lrm.resource_manager.ResourceManager`.
- :mod:`bursar.provisioning.pilot` is the program that a batch job runs.
"""
