"""
The execution service keeps instances, tasks and results of many users over HTTPS.

- :class:`bursar.service.execution_service.ExecutionService` is the whole service without sockets;
  :mod:`bursar.service.runner` gives it sockets, TLS and signals for ``bursar serve``.
- :mod:`bursar.service.interfaces` says what the parts of the service ask of each other.
- The parts: ``engine`` (instances and tasks), ``workers``, ``billing``, ``provisioner``,
  ``journal``, ``identity`` and ``http``.
"""
