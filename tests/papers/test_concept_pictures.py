"""The pictures of the concepts are those that the code draws."""

import pytest
from tools.concept_pictures import FOLDER, PICTURES, mark


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_was_made_of_the_present_chart(name: str) -> None:
    """Its digest covers data and encoding."""
    drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert mark(name) in drawn, "write them anew: python tools/concept_pictures.py"


def test_every_picture_is_shown_with_a_text_in_its_place() -> None:
    page = (FOLDER.parent / "concepts" / "index.md").read_text(encoding="utf-8")
    for name in PICTURES:
        before = page.split(f"](../images/{name}.svg)")[0]
        assert len(before) < len(page), name
        assert len(before.rsplit("![", 1)[1]) > 30, name
