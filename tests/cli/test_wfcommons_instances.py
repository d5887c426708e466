"""Instances of WfCommons, by its own recipes and by ones that WfChef finds, plan and run."""

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.foreign import run_foreign

GENERATE = """
import importlib, json, pathlib, random, sys
import numpy
import wfcommons

def write(recipe, name):
    random.seed(1); numpy.random.seed(1)
    for size in (60, 120, 240):  # a recipe has a smallest size
        try:
            made = wfcommons.WorkflowGenerator(recipe.from_num_tasks(size)).build_workflow()
        except ValueError:
            continue
        made.write_json(pathlib.Path(name + ".json"))
        print(json.dumps([name, len(made.nodes), len(made.edges)]))
        return
    raise SystemExit("no instance of " + name)
"""
OWN_RECIPES = """
for name in dir(wfcommons):
    if name.endswith("Recipe"):
        write(getattr(wfcommons, name), name)
"""
FOUND_RECIPE = """
from wfcommons.wfinstances import schema
from wfcommons.wfchef.chef import create_recipe
kind, schema_file = sys.argv[1:]
schema._schema_cache[schema.SCHEMA_URL] = json.load(open(schema_file))
random.seed(1); numpy.random.seed(1)
create_recipe(pathlib.Path("recorded"), pathlib.Path("recipe"), kind)
sys.path.insert(0, "recipe")
found = importlib.import_module("wfchef_recipe_" + kind)
write(getattr(found, kind.capitalize() + "Recipe"), kind)
"""
RECORDED = {
    "epigenomics": "epigenomics-*",
    "genome": "1000genome-*",
    "montage": "montage-chameleon-2mass-*",
    "soykb": "soykb-*",
    "srasearch": "srasearch-*",
}
"""Recorded executions from which WfChef makes a recipe, by its name."""


def order_after(folder: Any, name: str, tasks: int) -> dict[str, set[str]]:
    """Plan, simulate and replay an instance, and return the order of the exported replay."""
    file = f"{name}.json"
    planned = folder.json("plan", file)
    assert planned["tasks"] == tasks
    assert planned["front"]
    simulated = folder.json("simulate", file)
    assert (simulated["state"], simulated["succeeded"]) == ("finished", tasks)
    # In simulated time nothing but the plan's own figures takes time.
    assert simulated["makespan_s"] == pytest.approx(simulated["predicted_makespan_s"], rel=0.05)
    ran = folder.json(
        "run", file, "--replay", "1e-6", "--size-scale", "0", "--name", name, "--fresh", "-q"
    )
    assert (ran["state"], ran["succeeded"], ran["failed"]) == ("finished", tasks, 0)
    again = json.loads(folder.bursar("export", name, "--as", "wfformat").stdout)
    return order_of(again)


def order_of(instance: dict[str, Any]) -> dict[str, set[str]]:
    """The parents of each task."""
    tasks = instance["workflow"]["specification"]["tasks"]
    return {task["id"]: set(task["parents"]) for task in tasks}


def made(folder: Any, name: str) -> dict[str, Any]:
    """An instance as WfCommons has written it."""
    instance: dict[str, Any] = json.loads((folder.path / f"{name}.json").read_text())
    return instance


@pytest.mark.timeout(300)
def test_instances_of_every_recipe_plan_simulate_and_replay(folder: Any) -> None:
    lines = run_foreign("wfcommons", GENERATE + OWN_RECIPES, folder=folder.path).splitlines()
    assert len(lines) >= 10
    for name, tasks, _ in map(json.loads, lines):
        assert order_after(folder, name, tasks) == order_of(made(folder, name))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", RECORDED)
def test_instances_of_recipes_that_wfchef_finds(folder: Any, data: Path, kind: str) -> None:
    (folder.path / "recorded").mkdir()
    for file in (data / "workflows/wfformat").glob(RECORDED[kind]):
        target = folder.path / "recorded" / file.name.removesuffix(".xz")
        opened = lzma.open if file.suffix == ".xz" else open
        with opened(file, "rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    schema = str(data / "workflows/wfformat/wfcommons-schema.json")
    told = run_foreign(
        "wfcommons, tomli_w", GENERATE + FOUND_RECIPE, kind, schema, folder=folder.path
    )
    name, tasks, _ = json.loads(told.splitlines()[-1])
    assert order_after(folder, name, tasks) == order_of(made(folder, name))
