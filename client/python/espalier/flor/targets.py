"""Where a spool is: a folder, or a bucket of S3. Names have slashes, as NAME/3/log.jsonl."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from espalier.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unavailable
from espalier.flor import store
from espalier.flor.messages import say

FAILURES = (NotFound, PermissionDenied, Unavailable, OSError)  # what a target raises that does not answer, or refuses
_ATTEMPTS = 3
_CHUNK = 1 << 20
_PART = 16 << 20  # of a large file, for S3


class Target(Protocol):
    """A place for files. A name has its whole contents or is not there."""

    url: str
    moved: int  # bytes that were copied so far

    def prepare(self) -> None:
        """Makes the place for the first file. NotFound, Unavailable or OSError if that is not possible."""

    def expect(self, name: str, beginning: bytes) -> None:
        """From now on nothing is written while this file is missing, or begins otherwise: Unavailable then."""

    def put(self, name: str, path: Path, size: int) -> None:
        """Copies the first `size` bytes of a file; replaces what is there."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Writes a file; replaces what is there."""

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file unless there is one; of several that try at once, one gets True."""

    def read(self, name: str) -> bytes | None:
        """A small file; None if it is not there."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file in parts. NotFound if it is not there."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes by name of all files in a folder and in the folders therein."""

    def folders(self, folder: str) -> list[str]:
        """The last parts of the names of a folder's folders; "" is the outermost one."""


class _Prefix(io.RawIOBase):
    """The first bytes of a file, which may grow meanwhile."""

    def __init__(self, path: Path, size: int):
        self._file, self._size = open(path, "rb", buffering=0), size  # noqa: SIM115 - close() closes it

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(self._size - self._file.tell(), 0)]
        return self._file.readinto(view) or 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._size}[whence]
        return self._file.seek(base + offset)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


class Folder:
    """A folder of a disk, such as a mounted share."""

    def __init__(self, folder: Path):
        self.url, self.moved, self._folder = str(folder), 0, folder
        self._prepared = False
        self._expected: dict[str, bytes] = {}

    def prepare(self) -> None:
        """Makes the folder, once, if it does not exist; says so, also if it is empty, as a mount may be missing."""
        if self._prepared:
            return
        check_parent(self._folder)
        if not self._folder.is_dir():
            self._folder.mkdir(exist_ok=True)
            say(f"copies go to {self.url}, a new folder")
        elif next(self._folder.iterdir(), None) is None:
            say(f"copies go to {self.url}, an empty folder")
        self._prepared = True

    def expect(self, name: str, beginning: bytes) -> None:
        """From now on nothing is written while this file is missing, or begins otherwise: Unavailable then."""
        self._expected[name] = beginning

    def _check(self) -> None:
        """What was renamed or unmounted is not made anew: it would lack what is in the old one."""
        self.prepare()
        for name, beginning in self._expected.items():
            path = self._folder / name
            try:
                with open(path, "rb") as file:
                    same = file.read(len(beginning)) == beginning
            except FileNotFoundError:
                self._check_folder()
                raise Unavailable(f"{path} is gone: its folder was renamed or deleted, or is not mounted") from None
            if not same:
                raise Unavailable(f"{path} is that of another recording than before")
        self._check_folder()

    def _check_folder(self) -> None:
        if not self._folder.is_dir():
            raise Unavailable(f"the folder {self.url} is gone: renamed, or not mounted")

    def put(self, name: str, path: Path, size: int) -> None:
        """Copies the first `size` bytes of a file; replaces what is there."""
        with _Prefix(path, size) as source:
            self._write(name, iter(lambda: source.read(_CHUNK) or b"", b""))

    def put_bytes(self, name: str, data: bytes) -> None:
        """Writes a file; replaces what is there."""
        self._write(name, iter([data]))

    def _write(self, name: str, chunks: Iterator[bytes]) -> None:
        path = self._folder / name
        with self._temporary(path, chunks) as temporary:
            store.put_in_place(path, temporary)

    def _make_folder(self, folder: Path) -> None:
        """Makes a folder in that of the spool, which itself is not made anew."""
        if not folder.is_dir():
            if folder.parent != self._folder:
                self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def _temporary(self, path: Path, chunks: Iterator[bytes]) -> Iterator[str]:
        self._check()
        temporary = path.with_name(f".incomplete-{uuid.uuid4().hex}")
        try:
            self._make_folder(path.parent)
            with open(temporary, "xb") as file:
                for chunk in chunks:
                    self.moved += file.write(chunk)
            yield str(temporary)
        except FileNotFoundError:
            self._check()  # the spool may have gone since the first check
            raise
        finally:
            temporary.unlink(missing_ok=True)

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file unless there is one; of several that try at once, one gets True."""
        path = self._folder / name
        with self._temporary(path, iter([data])) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                try:
                    with open(path, "xb") as file:
                        file.write(data)
                except FileExistsError:
                    return False
        return True

    def read(self, name: str) -> bytes | None:
        """A small file; None if it is not there."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file in parts. NotFound if it is not there."""
        try:
            with open(self._folder / name, "rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except FileNotFoundError:
            raise NotFound(f"{self.url}/{name} is not there") from None

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes by name of all files in a folder and in the folders therein."""
        found = {}
        for path in (self._folder / folder).rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith(".") and path.is_file():
                    found[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return found

    def folders(self, folder: str) -> list[str]:
        """The last parts of the names of a folder's folders; "" is the outermost one."""
        try:
            return sorted(path.name for path in (self._folder / folder).iterdir() if path.is_dir())
        except FileNotFoundError:
            if not self._folder.is_dir():
                raise NotFound(f"there is no folder {self.url}") from None
            return []


class S3:
    """A bucket, or what is beneath a prefix in it, with the credentials that boto3 finds."""

    def __init__(self, bucket: str, prefix: str):
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        self.url, self.moved = f"s3://{bucket}/{prefix}".rstrip("/"), 0
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        retries = {"mode": "standard", "max_attempts": _ATTEMPTS}
        with self._errors(self.url):
            self._client = boto3.client("s3", config=Config(retries=retries, connect_timeout=10, read_timeout=60))
        # No threads: at the end of the interpreter none can begin.
        self._transfer = TransferConfig(multipart_threshold=_PART, multipart_chunksize=_PART, use_threads=False)

    def prepare(self) -> None:
        """Does nothing: a bucket is not made by programs that use it."""

    def expect(self, name: str, beginning: bytes) -> None:
        """Does nothing: a bucket that does not answer is not taken for an empty one."""

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            found = error.response.get("Error", {})
            code, status = found.get("Code", ""), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            text = f"{what}: {code} {found.get('Message', '')}".rstrip()
            if status == 403 or code in ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
                raise PermissionDenied(text) from None
            if code in ("NoSuchBucket", "NoSuchKey", "404"):
                raise NotFound(text) from None
            raise Unavailable(text) from None
        except (Boto3Error, BotoCoreError) as error:
            raise Unavailable(f"{what}: {error}") from None

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def put(self, name: str, path: Path, size: int) -> None:
        """Copies the first `size` bytes of a file; replaces what is there."""
        key = self._at(name)
        with _Prefix(path, size) as source, self._errors(f"{self.url}/{name}"):
            self._client.upload_fileobj(source, key["Bucket"], key["Key"], Config=self._transfer, Callback=self._count)

    def _count(self, size: int) -> None:
        self.moved += size

    def put_bytes(self, name: str, data: bytes) -> None:
        """Writes a file; replaces what is there."""
        with self._errors(f"{self.url}/{name}"):
            self._client.put_object(**self._at(name), Body=data)

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file unless there is one; of several that try at once, one gets True."""
        from botocore.exceptions import ClientError

        with self._errors(f"{self.url}/{name}"):
            try:
                self._client.put_object(**self._at(name), Body=data, IfNoneMatch="*")
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in ("PreconditionFailed", "412"):
                    raise
                return self.read(name) == data  # an answer may have been lost, and the request repeated
        return True

    def read(self, name: str) -> bytes | None:
        """A small file; None if it is not there."""
        from botocore.exceptions import ClientError

        for attempt in range(_ATTEMPTS):  # boto3 repeats requests, not the reading of their answers
            try:
                with self._errors(f"{self.url}/{name}"):
                    try:
                        data: bytes = self._client.get_object(**self._at(name))["Body"].read()
                        return data
                    except ClientError as error:
                        if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                            return None
                        raise
            except Unavailable:
                if attempt + 1 == _ATTEMPTS:
                    raise
        return None

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file in parts. NotFound if it is not there."""
        with self._errors(f"{self.url}/{name}"):
            body = self._client.get_object(**self._at(name))["Body"]
            with contextlib.closing(body):
                yield from body.iter_chunks(_CHUNK)

    def _pages(self, folder: str, **more: str) -> Iterator[Any]:
        prefix = self._prefix + (f"{folder}/" if folder else "")
        with self._errors(f"{self.url}/{folder}"):
            pages = self._client.get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self._bucket, Prefix=prefix, **more)

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes by name of all files in a folder and in the folders therein."""
        skip = len(self._prefix)
        return {each["Key"][skip:]: each["Size"] for page in self._pages(folder) for each in page.get("Contents", ())}

    def folders(self, folder: str) -> list[str]:
        """The last parts of the names of a folder's folders; "" is the outermost one."""
        found = [
            each["Prefix"].rstrip("/").rpartition("/")[2]
            for page in self._pages(folder, Delimiter="/")
            for each in page.get("CommonPrefixes", ())
        ]
        return sorted(found)


def check(url: str) -> tuple[str, str, str]:
    """("s3", bucket, prefix) or ("", folder, ""). InvalidArgument for other URLs, FailedPrecondition without boto3."""
    parts = urlsplit(url)
    if "://" not in url or parts.scheme == "file":
        path = unquote(parts.path) if parts.scheme == "file" else url
        if not path or (parts.scheme == "file" and parts.netloc not in ("", "localhost")):
            raise InvalidArgument(f"--flor_spool {url!r}: accepted are a folder, file:///FOLDER and s3://BUCKET/PREFIX")
        folder = Path(path).expanduser().absolute()
        if folder.resolve() == store.home().expanduser().resolve():
            raise InvalidArgument(f"--flor_spool {url}: the recordings themselves are there; give another folder")
        return "", str(folder), ""
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        raise InvalidArgument(f"--flor_spool {url!r}: accepted are a folder, file:///FOLDER and s3://BUCKET/PREFIX")
    if importlib.util.find_spec("boto3") is None:
        raise FailedPrecondition(f"--flor_spool {url} needs the package boto3: pip install 'espalier[s3]'")
    return "s3", parts.netloc, parts.path.strip("/")


def check_parent(folder: Path) -> None:
    """NotFound if a folder is not there and cannot be made in one that is."""
    if not folder.is_dir() and not folder.parent.is_dir():
        raise NotFound(
            f"there is no folder {folder}, nor {folder.parent}, in which it could be made: is it misspelled, or not "
            "mounted?"
        )


def check_for_writing(url: str) -> None:
    """As check; also NotFound for a folder that cannot be made."""
    scheme, where, _ = check(url)
    if not scheme:
        check_parent(Path(where))


def open_target(url: str) -> Target:
    """The target of a URL. InvalidArgument, FailedPrecondition: see check."""
    scheme, where, prefix = check(url)
    return S3(where, prefix) if scheme else Folder(Path(where))


__all__ = ["FAILURES", "S3", "Folder", "Target", "check", "check_for_writing", "open_target"]
