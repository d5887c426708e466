"""Files of weights: written, read back, and what is wrong with them."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.formats.network_files import read_weights, write_weights
from bursar.model.errors import BursarError, InputError
from bursar.model.matching import RankWeights

SHARES = st.floats(0, 1)
FOUND = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans(),
    max_size=4,
)


@given(SHARES, SHARES, FOUND)
@settings(max_examples=examples(100))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, alpha: float, beta: float, found: dict[str, object]
) -> None:
    """To the last bit, whatever is said of how it was found."""
    path = tmp_path_factory.getbasetemp() / "weights.toml"
    weights = RankWeights(alpha=alpha, beta=beta)

    write_weights(path, weights, found)  # type: ignore[arg-type]

    assert read_weights(path) == weights


def test_the_file_is_one_that_people_read(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"

    write_weights(path, RankWeights(alpha=0.75, beta=0.25), {"load": "60 s", "lifetime_s": 812.5})

    assert path.read_text() == (
        '[weights]\nalpha = 0.75\nbeta = 0.25\n\n[found]\nload = "60 s"\nlifetime_s = 812.5\n'
    )


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("[weights]\nalpha = 2.0\nbeta = 0", "w.toml:2: weights.alpha", "<= 1"),
        ("[weights]\nalpha = nan\nbeta = 0", "w.toml:2: weights.alpha", "number"),
        ("[weights]\nalpha = 0.5", "w.toml:1: weights", 'expected a key "beta"'),
        ("[weights]\nalpha = 0.5\nbeta = 'x'", "w.toml:3: weights.beta", "number"),
        ("[weights]\nalpha = 0.5\nbeta = 1\ngamma = 2", "w.toml:4: weights.gamma", "unknown key"),
        ("alpha = 0.5", "w.toml:1: alpha", "unknown key"),
        ("[weights", "w.toml:1:9", "TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, text: str, where: str, message: str
) -> None:
    path = tmp_path / "w.toml"
    path.write_text(text)

    with pytest.raises(InputError) as error:
        read_weights(path)

    assert error.value.where.endswith(where)
    assert message in str(error.value)


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(BursarError, match="cannot be written"):
        write_weights(tmp_path / "none" / "w.toml", RankWeights())


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_weights_are_shares(weight: float) -> None:
    with pytest.raises(ValueError, match="alpha must be between 0 and 1"):
        RankWeights(alpha=weight)
