"""
What it costs to begin: the help, the first plan of a new installation, and plans after it.

Each command is a process of its own, and its processor time is what counts; beside it stand an
interpreter that does nothing and one that imports NumPy. Byte code is written, as on any machine
where nobody has switched that off. The first plan finds neither byte code nor
machine code: its caches are empty folders. Commands take turns.

    python benchmarks/starting.py [--quick | --smallest] [--json FILE]
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Benchmark, at_most

SITES = """
[site.desk]
kind = "local"
processors = 1
unit_price = "0.04 EUR/core-hour"
[site.hall]
kind = "local"
processors = 4
unit_price = "0.12 EUR/core-hour"
fixed_price = "0.0002 EUR"
[site.yard]
kind = "local"
processors = 16
unit_price = "0.5 EUR/core-hour"
"""

TASKS = {8: 2, 52: 3}
"""Numbers of sites by the tasks that are planned there."""

BURSAR = ("-m", "bursar")


def write_campaigns(folder: Path) -> None:
    """Write a campaign of each size, and the sites of each."""
    parts = SITES.split("[site.")
    for tasks, sites in TASKS.items():
        text = f'[campaign]\nname = "c{tasks}"\ncommand = "sleep {{seconds}}"\n'
        text += f"[parameters]\nseconds = {list(range(1, tasks + 1))}\n"
        (folder / f"c{tasks}.toml").write_text(text + '[task]\nruntime = "{seconds}"\n')
        (folder / f"s{tasks}.toml").write_text("[site.".join(parts[: sites + 1]))


def processor_seconds(words: tuple[str, ...], folder: Path, caches: Path | None = None) -> float:
    """User and system time of one process of Python, its caches in a folder if one is given."""
    environment = dict(os.environ)
    # As an installation is: modules are compiled to byte code once.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if caches is not None:
        environment |= {"PYTHONPYCACHEPREFIX": str(caches), "NUMBA_CACHE_DIR": str(caches)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure each command, in turns."""
    bench = Benchmark(__file__, __doc__)
    rounds = bench.of(15, 5, 1)
    plans = {n: (*BURSAR, "plan", f"c{n}.toml", "--sites", f"s{n}.toml") for n in TASKS}
    commands: dict[str, tuple[tuple[str, ...], float | None]] = {
        "python -c pass": (("-c", "pass"), None),
        "python -c 'import numpy'": (("-c", "import numpy"), None),
        "bursar --help": ((*BURSAR, "--help"), 0.15),
        "bursar plan, 8 tasks on 2 sites": (plans[8], 0.4),
        "bursar plan, 52 tasks on 3 sites": (plans[52], 0.8),
        "bursar plan, 8 tasks, caches empty": (plans[8], 1.5),
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_campaigns(folder)
        for round_ in range(rounds + 1):
            for command, (words, _) in commands.items():
                caches = folder / f"caches{round_}" if "empty" in command else None
                seconds = processor_seconds(words, folder, caches)
                if round_:  # the first one warms caches
                    took[command].append(seconds)
    table = bench.table(
        f"processor time of a command, {rounds} rounds",
        *("command", "s, median", "least", "most", "aim, s", "met"),
    )
    for command, (_, aim) in commands.items():
        seconds = took[command]
        middle = statistics.median(seconds)
        met = None if aim is None else at_most(command, middle, aim).met
        table.add(command, middle, min(seconds), max(seconds), aim, met)
    bench.write()


if __name__ == "__main__":
    main()
