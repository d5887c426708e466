"""What every test may use."""

import atexit
import gc
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.durations import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.durations import pytest_runtest_logreport as pytest_runtest_logreport
from tests.durations import pytest_sessionfinish as pytest_sessionfinish
from tests.testgrid.clusters import slurm as slurm
from tests.testgrid.clusters import usual_slurm as usual_slurm
from tests.thoroughness import examples

from bursar.compiling import prefer_machine_code

# Tests that compare kernels with plain twins are to test the machine code.
prefer_machine_code()

# What is imported while tests are collected stays: a fifth of that time would go into looking
# whether any of it is garbage. See pytest_collection_finish.
gc.disable()

os.environ["BURSAR_OWNERS"] = "off"  # tests see neither each other's runs nor their user's
# Journals are sealed by a key of the tests' own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="bursar-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Processors may be busy with something else: how long an example takes says nothing about the code.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

_numbers = itertools.count()

DATA = Path(
    os.environ.get("BURSAR_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not among modules and collected tests."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    """No test knows how long the tasks of another one took."""
    file = Path(os.environ["XDG_STATE_HOME"]) / f"history-{next(_numbers)}.sqlite"
    os.environ["BURSAR_HISTORY"] = str(file)


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the reference data; the test is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"reference data not found at {DATA} (set BURSAR_TEST_DATA)")
    return DATA
