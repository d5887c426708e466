"""
Copies in S3 and compatible stores, through s3fs.

Keys, region and endpoint come from the environment and ``~/.aws``, as for all programs of AWS.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from bursar.model.errors import InputError
from bursar.replicas.content import SourceFailed, redact_url, split_url
from bursar.replicas.schemes.source import SILENT, failing

try:
    import botocore.exceptions as aws
    import s3fs
except ImportError:  # pragma: no cover - told by a test in another process
    raise InputError("s3 copies need s3fs", hint="pip install 'bursar[s3]'") from None

_BLOCK = 8 * 1024 * 1024
_MOST_BLOCKS = 9_000  # an upload has 10,000 at most


class S3Source:
    """A copy read from an S3 object; size and tag are taken at opening."""

    chunk = _BLOCK

    def __init__(self, url: str, offset: int, patience: float) -> None:
        with _failing():
            system, path = _system(url, patience)
            # Read once from the beginning on: fsspec's read-ahead would only hold the bytes twice.
            self._file = system.open(path, "rb", cache_type="none")
            self.size: int = self._file.size
            self.tag: str = self._file.details.get("ETag") or ""
            self.start = min(offset, self.size)
            self._file.seek(self.start)

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        with _failing():
            return bytes(self._file.read(size))

    def close(self) -> None:
        """Do nothing: no connection is held."""


class S3Upload:
    """An upload of an S3 object, which becomes visible when complete."""

    def __init__(self, url: str, size: int | None, patience: float) -> None:
        with _failing():
            system, path = _system(url, patience)
            block = max(_BLOCK, -(-(size or 0) // _MOST_BLOCKS))
            self._file = system.open(path, "wb", block_size=block, autocommit=False)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        with _failing():
            self._file.write(data)

    def finish(self) -> None:
        """Complete the upload."""
        with _failing():
            self._file.close()
            self._file.commit()

    def discard(self) -> None:
        """Abort the upload and delete the sent parts, as far as possible."""
        with contextlib.suppress(SourceFailed), _failing():
            self._file.discard()
        self._file.closed = True  # or its finaliser would send the rest


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        with failing():
            yield
    except (aws.NoCredentialsError, aws.PartialCredentialsError):
        raise SourceFailed("needs credentials (AWS_ACCESS_KEY_ID and so on)") from None
    except aws.HTTPClientError:
        raise SourceFailed(SILENT, transient=True) from None
    except aws.ClientError as error:
        reason = f"answers {error.response.get('Error', {}).get('Code', 'with an error')}"
        raise SourceFailed(reason, transient=True) from None
    except aws.BotoCoreError as error:
        raise SourceFailed(type(error).__name__) from None


def _system(url: str, patience: float) -> tuple[Any, str]:
    _, bucket, key = split_url(url)
    if not key.strip("/"):
        raise InputError("expected s3://bucket/key", where=redact_url(url))
    system = s3fs.S3FileSystem(
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": patience,
            "read_timeout": patience,
            # The transfer pool tries again itself, with other copies in between.
            "retries": {"max_attempts": 1},
        },
    )
    return system, bucket + key
