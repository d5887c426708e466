"""
Bursar plans, buys and runs computing campaigns by deadline and budget.

>>> import bursar
>>> quote = bursar.plan("campaign.toml")          # doctest: +SKIP
>>> result = bursar.run("campaign.toml")             # doctest: +SKIP
>>> with bursar.Executor() as executor:              # doctest: +SKIP
...     squares = list(executor.map(square, range(100)))

Names are imported when first used: ``import bursar`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bursar.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from bursar.api.calls.joblib_backend import register_joblib
    from bursar.api.executor import Executor, TaskFailed
    from bursar.api.mapping import MapDeadlineMissed, MapFailed, map
    from bursar.api.matching import match
    from bursar.api.planning import plan
    from bursar.api.quote import GoalOutOfReach, Quote
    from bursar.api.run_result import RunResult, TaskResult
    from bursar.api.running import resume, run
    from bursar.api.simulating import Simulation, simulate
    from bursar.formats.campaign_file import read_campaign
    from bursar.formats.sites_toml import read_sites
    from bursar.model.campaign import Campaign, Goal, Retry, Workflow
    from bursar.model.errors import (
        BudgetStop,
        BursarError,
        DeadlineMissed,
        Infeasible,
        InputError,
        SiteError,
    )
    from bursar.model.matching import Brokering, Matching
    from bursar.model.site import SiteFacts
    from bursar.model.task import Exec, File, Shell, Task

_HOMES = {
    "Brokering": "model.matching",
    "BudgetStop": "model.errors",
    "BursarError": "model.errors",
    "Campaign": "model.campaign",
    "DeadlineMissed": "model.errors",
    "Exec": "model.task",
    "Executor": "api.executor",
    "File": "model.task",
    "Goal": "model.campaign",
    "GoalOutOfReach": "api.quote",
    "Infeasible": "model.errors",
    "InputError": "model.errors",
    "MapDeadlineMissed": "api.mapping",
    "MapFailed": "api.mapping",
    "Matching": "model.matching",
    "Quote": "api.quote",
    "Retry": "model.campaign",
    "RunResult": "api.run_result",
    "Shell": "model.task",
    "Simulation": "api.simulating",
    "SiteError": "model.errors",
    "SiteFacts": "model.site",
    "Task": "model.task",
    "TaskFailed": "api.executor",
    "TaskResult": "api.run_result",
    "Workflow": "model.campaign",
    "map": "api.mapping",
    "match": "api.matching",
    "plan": "api.planning",
    "register_joblib": "api.calls.joblib_backend",
    "read_campaign": "formats.campaign_file",
    "read_sites": "formats.sites_toml",
    "resume": "api.running",
    "run": "api.running",
    "simulate": "api.simulating",
}

__all__ = [
    "Brokering",
    "BudgetStop",
    "BursarError",
    "Campaign",
    "DeadlineMissed",
    "Exec",
    "Executor",
    "File",
    "Goal",
    "GoalOutOfReach",
    "Infeasible",
    "InputError",
    "MapDeadlineMissed",
    "MapFailed",
    "Matching",
    "Quote",
    "Retry",
    "RunResult",
    "Shell",
    "Simulation",
    "SiteError",
    "SiteFacts",
    "Task",
    "TaskFailed",
    "TaskResult",
    "Workflow",
    "map",
    "match",
    "plan",
    "read_campaign",
    "read_sites",
    "register_joblib",
    "resume",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'bursar' has no attribute {name!r}")
    value = getattr(import_module(f"bursar.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
