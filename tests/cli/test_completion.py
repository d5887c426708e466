"""Shells complete commands, options and values: asked of the shells themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Completes as the Tab key does: through the function that the script has registered for bursar.
BASH = """
eval "$(bursar --completion bash)"
function=$(complete -p bursar | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$function bursar "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = """
bursar --completion fish | source
complete --do-complete (string join ' ' -- $argv) | string replace -r '\\t.*' ''
exit 0  # the last command tells whether it has replaced anything
"""
ZSH = """
autoload -Uz compinit; compinit -u -D
eval "$(bursar --completion zsh)"
# zsh completes in its line editor only; its own function is asked for what it would offer.
print -r -- ${_comps[bursar]}
"""
WORDS = [
    (["ex"], {"export", "exchange"}),
    (["export", "r", "--as", "w"], {"wfformat"}),
    (["export", "r", "--no-c"], {"--no-commands"}),
    (["history", "im"], {"import"}),
    (["logs", "fi"], {"first", "fifth"}),
    (["plan", "x.toml", "--market", "ba"], {"bargain"}),
]


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """What a shell prints, in a folder with two runs, where bursar is a command."""
    for name in ("first", "fifth", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    programs = Path(sys.executable).parent
    if not (programs / "bursar").exists():
        pytest.skip("needs the command bursar beside the interpreter")

    def run(program: str, *words: str) -> str:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
        texts = {"bash": BASH, "fish": FISH, "zsh": ZSH}
        (tmp_path / "script").write_text(texts[program])
        options = {"bash": ["--norc"], "fish": ["--no-config"], "zsh": ["-f"]}
        done = subprocess.run(
            [program, *options[program], "script", *words],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "SHELL": program},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout

    return run


@pytest.mark.parametrize("program", ["bash", "fish"])
@pytest.mark.parametrize(("words", "found"), WORDS)
def test_a_shell_completes(shell: Any, program: str, words: list[str], found: set[str]) -> None:
    assert set(shell(program, "bursar", *words).split()) == found


def test_zsh_takes_the_script(shell: Any) -> None:
    assert shell("zsh").strip() == "_bursar_completion"
