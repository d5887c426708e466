"""Storage elements and the catalogue, against plain twins."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.datagrid.grids import replica
from tests.thoroughness import examples

from bursar.simulation.datagrid.staging import ReplicaCatalogue, StorageElement

STEPS = st.lists(
    st.tuples(st.sampled_from(("keep", "pin", "release")), st.sampled_from("pqrs")), max_size=40
)


@settings(max_examples=examples(150))
@given(STEPS, st.integers(0, 10))
def test_what_is_used_stays_and_room_is_never_exceeded(
    steps: list[tuple[str, str]], limit: int
) -> None:
    """Beside a list of copies, the longest unused first, and a list of pins."""
    sizes = {"p": 1, "q": 2, "r": 3, "s": 5}
    storage = StorageElement(["own"], limit)
    there: list[str] = []
    pins: list[str] = []
    for what, name in steps:
        if what == "keep" and name not in there:
            room = limit - sum(sizes[other] for other in there)
            going = []
            for other in there:
                if room >= sizes[name]:
                    break
                if other not in pins:
                    going.append(other)
                    room += sizes[other]
            expected = going if room >= sizes[name] else None
            assert storage.keep(name, sizes[name]) == expected
            if expected is not None:
                there = [other for other in there if other not in going] + [name]
        elif what == "pin" and name in there:
            storage.pin(name)
            pins.append(name)
            there.remove(name)
            there.append(name)
        elif what == "release" and name in pins:
            storage.release(name)
            pins.remove(name)
        assert [n for n in "pqrs" if storage.has(n)] == [n for n in "pqrs" if n in there]
        assert storage.has("own")
        assert storage.used == sum(sizes[n] for n in there) <= limit
        assert all(storage.has(name) for name in pins)


def test_the_catalogue_says_when_it_changed() -> None:
    catalogue = ReplicaCatalogue([replica("x", "a", 7)])
    before = catalogue.version

    catalogue.forget("x", "b")
    assert catalogue.version == before
    catalogue.register("x", "b")
    assert list(catalogue.sites("x")) == ["a", "b"]
    catalogue.forget("x", "a")
    assert list(catalogue.sites("x")) == ["b"]
    assert catalogue.version == before + 2
    assert (catalogue.size("x"), catalogue.size("y")) == (7, 0)
