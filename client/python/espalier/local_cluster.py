"""A daemon of one's own: started for a program, and ended with it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from espalier import errors, kept_sessions
from espalier.client import Client, push_default_client, remove_default_client
from espalier.counts import check_count

_PROGRAM = "espalierd"
# Kills what remains when Python has died: the pipe at its standard input ends then. Arguments: the process group, the
# folder to remove or an empty text. It stays until Python closes the pipe after a word ("done").
_WATCHER = """
read -r word
[ "$word" = done ] && exit 0
kill -TERM "$1" 2> /dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$1" 2> /dev/null || break; sleep 0.5; done
kill -KILL -- "-$1" 2> /dev/null
[ -z "$2" ] || rm -rf -- "$2"
"""


def find_program(name: str = _PROGRAM) -> Path:
    """The path of a program: in ESPALIER_BIN (a folder), in the package's own folder `bin`, or on the PATH.

    A platform wheel has that folder. NotFound with the places tried and how to get it.
    """
    given = os.environ.get("ESPALIER_BIN")
    if given:
        folders = [Path(given), *(Path(given) / part for part in ("server", "worker", "client"))]
    else:
        folders = [Path(__file__).resolve().parent / "bin"]
    places = [folder / name for folder in folders]
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place.resolve()
    on_path = shutil.which(name)
    if not given and on_path:
        return Path(on_path)
    tried = ", ".join(map(str, places)) + ("" if given else ", and the PATH")
    raise errors.NotFound(
        f"{name} is not there; looked for {tried}. Build it (bazel build --config=release //...) and name its folder: "
        "ESPALIER_BIN=FOLDER; or connect to a coordinator that runs elsewhere: espalier.Client('HOST:PORT')"
    )


class LocalCluster:
    """A daemon with workers on this machine, as a context manager that gives its Client.

    Within the context that client is the default. The daemon ends with the context, with the program, or when Python
    dies. Used by one thread.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        flags: Sequence[str] = (),
        timeout: float = 90.0,
    ):
        self._workers = check_count("workers", workers, 0)
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._flags = list(flags)
        self._timeout = timeout
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.client: Client | None = None

    @property
    def log(self) -> Path | None:
        """The daemon's log; None before the start."""
        return None if self._folder is None else self._folder / "espalierd.log"

    @property
    def pid(self) -> int | None:
        """The daemon's process; None while it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> Client:
        """Starts the daemon and waits until it answers. InternalError with the end of its log if it does not."""
        if self.client is not None:
            return self.client
        program = find_program()
        self._folder = Path(tempfile.mkdtemp(prefix="espalier-local-"))
        ready = self._folder / "espalierd.ready"
        command = [
            str(program),
            "--listen=127.0.0.1:0",
            "--http-listen=127.0.0.1:0",
            f"--local-workers={self._workers}",
            f"--data-dir={self._data_dir or self._folder / 'data'}",
            f"--ready-file={ready}",
            "--drain-seconds=1",
            *self._flags,
        ]
        try:
            with open(self._folder / "espalierd.log", "wb") as log:
                # A session of its own: Ctrl-C at the terminal is for Python, which then ends it.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "espalier-watcher", str(self._process.pid), str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            atexit.register(self.stop)
            self.client = Client(self._wait_until_ready(ready), token="", tls=False)
        except BaseException:
            self.stop()
            raise
        push_default_client(self.client)
        if not any(flag.startswith("--listen") for flag in self._flags):  # else another may take its place
            threading.Thread(target=self._await_end, args=(self._process, self.client), daemon=True).start()
        return self.client

    def _await_end(self, process: subprocess.Popen[bytes], client: Client) -> None:
        """Where the daemon ends by itself, lets nobody wait for its return."""
        code = process.wait()
        with self._lock:
            if self._process is not process:
                return  # `stop` has ended it
            kept = f" Its data are in {self._data_dir}." if self._data_dir else ""
            client._connection.end(
                f"the coordinator of espalier.local() has ended by itself (exit code {code}).{kept} The end of its "
                f"log:\n  {self._log_end()}"
            )

    def _log_end(self) -> str:
        assert self.log is not None
        return "\n  ".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])

    def _wait_until_ready(self, ready: Path) -> str:
        process = self._process
        assert process is not None
        end = time.monotonic() + self._timeout
        while True:
            with contextlib.suppress(OSError, ValueError):
                return str(json.loads(ready.read_text(encoding="utf-8"))["grpc"])
            late = time.monotonic() > end
            if late or process.poll() is not None:
                what = f"is not ready after {self._timeout:g} s" if late else "ended at once"
                raise errors.InternalError(f"espalierd {what}. The end of its log:\n  {self._log_end()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends the daemon and its workers, and removes its temporary folder. No effect if it does not run."""
        if os.getpid() != self._owner:  # in a child made by fork
            return
        with self._lock:
            atexit.unregister(self.stop)
            if self.client is not None:
                kept_sessions.release(self.client)
                remove_default_client(self.client)
                kept = f"; its data are in {self._data_dir}" if self._data_dir else ""
                self.client._connection.end(
                    f"the coordinator of espalier.local() has ended{kept}: fetch weights and so on within its context"
                )
                self.client = None
            process, self._process = self._process, None
            if process is not None:
                _end(process)
            if self._watcher is not None and self._watcher.stdin is not None:
                with contextlib.suppress(OSError):
                    self._watcher.stdin.write(b"done\n")
                    self._watcher.stdin.close()
                self._watcher.wait()
                self._watcher = None
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def __enter__(self) -> Client:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL for the whole group, so that no worker stays."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except BaseException as error:
            _kill_group(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def local(
    workers: int = 2,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    timeout: float = 90.0,
) -> LocalCluster:
    """A daemon with `workers` on this machine: `with espalier.local(workers=2) as client: ...`.

    It listens on free ports of the loopback. Its data lie in `data_dir`, which stays, or in a temporary folder. `flags`
    are further flags of espalierd (docs/reference/espalierd-flags.md). Errors when it starts: as LocalCluster.start;
    it has `timeout` seconds.
    """
    if sys.platform == "win32":
        raise errors.FailedPrecondition("espalier.local() needs Linux; connect to a coordinator: espalier.Client(...)")
    return LocalCluster(workers, data_dir=data_dir, flags=flags, timeout=timeout)
