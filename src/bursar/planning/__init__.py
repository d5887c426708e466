"""
Planning turns the slots that sites offer and a workflow into plans.

A plan buys processors of one or more sites and says where each task goes.

- :func:`bursar.planning.trade_off_solver.trade_off` tries many purchases and keeps those
  not beaten in both makespan and cost.
- :func:`bursar.planning.plan_choice.choose_plan` picks one of them by the user's goal, or
  says why none will do and what would.
- :mod:`bursar.planning.bounds` proves how good any plan can be.
- :mod:`bursar.planning.schedulers` places the tasks on what is bought; its loops are in
  :mod:`bursar.planning.kernels`, compiled when first used.

NumPy and Numba are imported by the first plan, not by importing these modules'
data types: a command that plans nothing does not wait for them.
"""
