"""
The broker decides which site runs which task, and when.

- :mod:`bursar.broker.pilot_plan` turns a plan's purchases into pilots.
- :class:`bursar.broker.dynamic_scheduler.DynamicScheduler` is the protocol of what decides while
  a run goes on: :mod:`bursar.broker.dynamic_scheduler` (best effort), :mod:`bursar.broker.economy`
  (schedule advisers and trading) and :mod:`bursar.broker.brokered_scheduler` (sites that match).
- :mod:`bursar.broker.matchmaking` is the resource broker, :mod:`bursar.broker.status_feeds` the
  information index.
"""
