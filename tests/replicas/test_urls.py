"""What may be shown of where a copy is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.replicas.content import join_url, normalise_url, redact_url, redact_urls


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b c", "/a/b c"),
        ("http://host/x", "http://host/x"),
        ("https://ann:secret@host:8443/x?Signature=1#part", "https://host:8443/x"),
        ("http://token@host/x", "http://host/x"),
        ("ssh://ann:se@cr:et@host/x?y", "ssh://ann@host/x?y"),
        ("s3://bucket/key#1", "s3://bucket/key#1"),
        ("http://[odd:secret@host/x", "http://host/x"),
    ],
)
def test_passwords_and_signatures_are_left_out(url: str, expected: str) -> None:
    """However odd the rest of it."""
    assert redact_url(url) == expected


WORD = st.text(st.characters(categories=["L", "N"], exclude_characters="/"), min_size=8)


@settings(max_examples=examples(50))
@given(st.sampled_from(["http", "https", "ssh", "sftp"]), WORD, WORD)
def test_no_password_is_ever_shown(scheme: str, user: str, secret: str) -> None:
    """Nor in somebody else's line about it."""
    url = f"{scheme}://{user}x:{secret}!@host/y"
    for text in (redact_url(url), redact_urls(f"Cannot open '{url}', url={url!r}")):
        assert f"{secret}!" not in text
        assert "host/y" in text


def test_a_place_and_a_name_make_a_url() -> None:
    """With one slash between them."""
    assert join_url("s3://bucket/", "a/b") == join_url("s3://bucket", "a/b") == "s3://bucket/a/b"


def test_schemes_are_written_small() -> None:
    """So that a URL is the same however it was typed."""
    assert normalise_url("HTTP://Host/X") == "http://Host/X"
