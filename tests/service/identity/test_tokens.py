"""Tokens: who has one comes in, and nobody else."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.identity.identity_rig import DAY, NOW, Notebook, Turned, mode, new, run
from tests.thoroughness import examples

from bursar.model.errors import BursarError
from bursar.remote.admin_messages import NewToken
from bursar.service.identity.authentication import (
    MOST_TOKENS,
    JournalTokenStore,
    provide_first_token,
)
from bursar.service.interfaces import SCOPES, Principal, ServiceError
from bursar.store import RealDisk, RecordStore


@pytest.fixture
def clock() -> Turned:
    """Turned by tests."""
    return Turned()


@pytest.fixture
def notebook() -> Notebook:
    """A journal in memory."""
    return Notebook()


@pytest.fixture
def book(notebook: Notebook, clock: Turned) -> JournalTokenStore:
    """Without tokens."""
    return JournalTokenStore(notebook, clock=clock, entropy=os.urandom)  # type: ignore[arg-type]


def test_a_token_says_whose_it_is(book: JournalTokenStore) -> None:
    """
    Its user and scopes come with it, and it is told once.
    """
    made = book.create(new("ann", "submit", "read"))

    assert book.find(made.token) == Principal(user="ann", scopes=frozenset({"submit", "read"}))
    assert [(each.id, each.token) for each in book.tokens()] == [(made.id, "")]


def test_scopes_stand_side_by_side(book: JournalTokenStore) -> None:
    """
    An administrator's token submits nothing: none of the scopes implies another.
    """
    for scope in SCOPES:
        made = book.create(new("ann", scope, scope))
        assert made.scopes == [scope]
        bearer = book.find(made.token)
        assert bearer is not None
        assert bearer.scopes == {scope}


@given(text=st.text(max_size=100))
@settings(max_examples=examples(100))
def test_nothing_else_is_a_token(text: str) -> None:
    """
    Whatever else a client sends, nobody is found, and nothing fails.
    """
    book = JournalTokenStore(Notebook(), clock=Turned(), entropy=os.urandom)  # type: ignore[arg-type]
    made = book.create(new())
    _, name, secret = made.token.split("_")

    for wrong in (text, f"bursar_{text}_{text}", f"bursar_{name}_{text}", f"{made.token}{text} "):
        assert book.find(wrong) is None
    assert book.find(f"bursar_{name}_{secret[::-1]}") is None
    assert book.find(f"bursar_{name[::-1]}_{secret}") is None
    assert book.find(f"bursar_{'0' * 16}_{'0' * 64}") is None


def test_secrets_are_not_kept(book: JournalTokenStore, notebook: Notebook) -> None:
    """
    Whoever reads the journal can use none of the tokens in it.
    """
    made = book.create(new())
    secret = made.token.split("_")[2]

    (kept,) = [payload for _, payload in notebook.living.values()]
    assert secret.encode() not in kept
    assert bytes.fromhex(secret) not in kept
    assert made.id.encode() in kept


def test_a_token_ends(book: JournalTokenStore, notebook: Notebook, clock: Turned) -> None:
    """
    After 30 days unless told otherwise; then nothing of it is left.
    """
    month, day = book.create(new()), book.create(new(seconds=DAY))
    assert (month.expires, day.expires) == (NOW + 30 * DAY, NOW + DAY)

    clock.now = NOW + DAY
    assert book.find(day.token) is None
    assert book.find(month.token) is not None
    assert [each.id for each in book.tokens()] == [month.id]
    assert len(notebook.living) == 1


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (new(seconds=367 * DAY), "seconds"),
        (new(""), "user"),
        (new("a b"), "user"),
        (new("../etc"), "user"),
        (new("a" * 65), "user"),
        (new("a\nb"), "user"),
    ],
)
def test_bad_wishes_are_refused(book: JournalTokenStore, asked: NewToken, where: str) -> None:
    """
    No token lasts for ever, and a user's name fits into a line, a file's name and a certificate.
    """
    with pytest.raises(ServiceError) as refused:
        book.create(asked)
    assert (refused.value.status, refused.value.where) == (422, where)
    assert book.tokens() == []


def test_a_user_has_so_many_tokens(book: JournalTokenStore) -> None:
    """
    One user's tokens cannot fill the memory; others still get theirs.
    """
    for _ in range(MOST_TOKENS):
        book.create(new("ann"))
    with pytest.raises(ServiceError) as refused:
        book.create(new("ann"))
    assert refused.value.status == 409
    book.create(new("bob"))


def test_a_revoked_token_is_refused_at_once(book: JournalTokenStore, notebook: Notebook) -> None:
    """
    And cannot be revoked again, nor can one that never was.
    """
    made, other = book.create(new()), book.create(new())
    book.revoke(made.id)

    assert book.find(made.token) is None
    assert book.find(other.token) is not None
    assert len(notebook.living) == 1
    for unknown in (made.id, "0" * 16, ""):
        with pytest.raises(ServiceError) as refused:
            book.revoke(unknown)
        assert refused.value.status == 404


def test_a_full_disk_makes_no_token_but_revokes(
    book: JournalTokenStore, notebook: Notebook
) -> None:
    """
    What cannot be kept is not told; what must not be used any more is not.
    """
    made = book.create(new())
    notebook.is_full = True

    with pytest.raises(ServiceError) as refused:
        book.create(new())
    assert refused.value.status == 507
    assert len(book.tokens()) == 1
    book.revoke(made.id)
    assert book.find(made.token) is None


def test_good_tokens_survive_a_restart(
    book: JournalTokenStore, notebook: Notebook, clock: Turned
) -> None:
    """
    Those that are good; records of the others are gone for good.
    """
    good, short, revoked = book.create(new()), book.create(new(seconds=DAY)), book.create(new())
    book.revoke(revoked.id)
    clock.now += 2 * DAY
    assert len(book.tokens()) == 1  # which forgets what has expired

    assert len(notebook.living) == 1
    later = notebook.restored(clock)
    assert later.find(good.token) is not None
    assert later.find(short.token) is None
    assert later.find(revoked.token) is None
    later.revoke(good.id)
    assert notebook.living == {}


def test_tokens_lie_in_the_real_journal(tmp_path: Path, clock: Turned) -> None:
    """
    Made, one revoked, and read again from the disk, without the journal having been closed.
    """

    async def life(folder: Path) -> tuple[JournalTokenStore, RecordStore, RealDisk]:
        disk = RealDisk(folder)
        journal = RecordStore(disk, reserve=2**16, least_free=2**16)
        book = JournalTokenStore(journal, clock=clock, entropy=os.urandom)
        await journal.open()
        return book, journal, disk

    async def two_lives() -> None:
        book, journal, disk = await life(tmp_path / "state")
        kept, gone = book.create(new("ann")), book.create(new("ann"))
        await journal.durable()
        book.revoke(gone.id)
        await journal.durable()
        shutil.copytree(tmp_path / "state", tmp_path / "left")
        await journal.close()
        disk.close()

        book, journal, disk = await life(tmp_path / "left")
        assert book.find(kept.token) is not None
        assert book.find(gone.token) is None
        await journal.close()
        disk.close()

    run(two_lives())


def test_the_first_administrator_finds_a_token(
    book: JournalTokenStore, notebook: Notebook, clock: Turned, tmp_path: Path
) -> None:
    """
    In a file that nobody else can read; made once, and again when it has ended.
    """
    path = tmp_path / "admin.token"

    assert run(provide_first_token(book, notebook, path, "owner"))  # type: ignore[arg-type]
    first = path.read_text().strip()
    assert mode(path) == 0o600
    bearer = book.find(first)
    assert bearer == Principal(user="owner", scopes=frozenset(SCOPES))
    assert not run(provide_first_token(book, notebook, path, "owner"))  # type: ignore[arg-type]
    assert path.read_text().strip() == first

    clock.now += 400 * DAY
    assert run(provide_first_token(book, notebook, path, "owner"))  # type: ignore[arg-type]
    assert book.find(path.read_text().strip()) is not None
    assert book.find(first) is None


def test_a_first_token_that_cannot_be_written_is_an_error(
    book: JournalTokenStore, notebook: Notebook, tmp_path: Path
) -> None:
    """
    One line that names the file.
    """
    with pytest.raises(BursarError, match=r"missing/admin\.token: cannot be written"):
        run(provide_first_token(book, notebook, tmp_path / "missing" / "admin.token", "owner"))  # type: ignore[arg-type]
