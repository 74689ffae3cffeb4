"""Real processes on loopback: a coordinator, workers that a test can kill one by one, and the command line."""
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DATA = os.path.join(ROOT, "tests", "data")
PROGRAMS = {name: os.path.join(ROOT, path) for name, path in
            {"espalierd": "server/espalierd", "espalier-worker": "worker/espalier-worker",
             "espalier": "client/espalier"}.items()}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def write_private(path, text):
    """A file of keys: the programs refuse those that other users can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


class Failed(Exception):
    def __init__(self, code, out, err):
        super().__init__(f"exit {code}\n{out}\n{err}")
        self.code, self.out, self.err = code, out, err


class Cluster:
    def __init__(self, workers=2, lease=3.0, daemon_flags=(), worker_flags=(), ca=None, host="127.0.0.1",
                 measure=False):
        """ca: PEM file for TLS to the daemon, whose flags must enable TLS. host: address that the daemon listens on.
        measure: whether plans measure operators on the workers, which computes for three seconds for each new model."""
        self.ca = ca
        self.folder = tempfile.mkdtemp(prefix="espalier-e2e-")
        self.grpc, self.http = f"{host}:{free_port()}", f"{host}:{free_port()}"
        self.lease, self.daemon_flags, self.worker_flags = lease, list(daemon_flags), list(worker_flags)
        self.measure_flags = [] if measure else ["--measure-seconds=0"]
        self.daemon, self.workers, self.logs = None, [], []
        try:
            self.start_daemon()
            for _ in range(workers):
                self.start_worker()
            self.wait_for_workers(workers)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            for path in self.logs:
                with open(path, errors="replace") as log:
                    print(f"--- {os.path.basename(path)}\n" + "".join(log.readlines()[-40:]))
        self.close()

    def spawn(self, name, *flags, prefix=()):
        """prefix: the command that starts the program, as nsenter."""
        path = os.path.join(self.folder, f"{name}.{len(self.logs)}.log")
        self.logs.append(path)
        with open(path, "w") as log:
            return subprocess.Popen([*prefix, PROGRAMS[name], *flags], stdout=log, stderr=log)

    def start_daemon(self, until="/ready"):
        self.daemon = self.spawn("espalierd", f"--listen={self.grpc}", f"--http-listen={self.http}",
                                 f"--data-dir={self.folder}/data", f"--lease-seconds={self.lease}",
                                 "--serving-threads=1", *self.measure_flags, *self.daemon_flags)
        self.wait(lambda: self.get(until)[0] == 200, 60, f"the coordinator answers {until}")

    def children(self):
        """Process ids of the daemon's local workers."""
        folder = f"/proc/{self.daemon.pid}/task"
        return sorted({int(child) for task in os.listdir(folder)
                       for child in read(os.path.join(folder, task, "children")).split()})

    def start_worker(self, number=None):
        """`number`: of a worker that ended, which comes back under its name."""
        if number is None:
            number = len(self.workers)
            self.workers.append(None)
        self.workers[number] = self.spawn("espalier-worker", f"--coordinator={self.grpc}", f"--name=w{number}",
                                          "--threads=1", f"--cache-dir={self.folder}/cache{number}",
                                          *self.worker_flags)
        return self.workers[number]

    def wait_for_workers(self, count):
        def there():
            workers = self.run("status").get("workers", [])
            return sum(w["state"] in ("IDLE", "BUSY", "idle", "busy") for w in workers) >= count
        self.wait(there, 60, f"{count} workers have joined")

    def wait(self, condition, seconds, what):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if condition():
                    return
            except (Failed, OSError, KeyError):
                pass
            if self.daemon is not None and self.daemon.poll() is not None:
                raise AssertionError(f"the coordinator ended with {self.daemon.returncode} while waiting: {what}")
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {what}")

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self):
        for process in [p for p in [self.daemon, *self.workers] if p is not None and p.poll() is None]:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cli(self, *args, check=True, timeout=300):
        env = dict(os.environ, ESPALIER_COORDINATOR=self.grpc, ESPALIER_HTTP=self.http,
                   ESPALIER_HOME=os.path.join(self.folder, "home"))
        if self.ca:
            env["ESPALIER_CA_FILE"] = self.ca
        done = subprocess.run([PROGRAMS["espalier"], *args], env=env, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise Failed(done.returncode, done.stdout, done.stderr)
        return done

    def run(self, *args):
        """Returns the JSON document that a command prints, or the last one of a stream."""
        out = self.cli(*args, "--json").stdout
        try:
            return json.loads(out)
        except json.JSONDecodeError:
            return json.loads(out.strip().splitlines()[-1])

    def train(self, *flags):
        return self.run("train", "--detach", *flags)["job_id"]

    def job(self, job_id):
        reply = self.run("jobs", "get", job_id)
        return reply["job"], reply.get("reports", []), [message["text"] for message in reply.get("messages", [])]

    def losses(self, job_id):
        _, reports, _ = self.job(job_id)
        return {int(r.get("step", 0)): r["values"]["loss"] for r in reports}

    def wait_for_job(self, job_id, seconds=240):
        def over():
            return self.job(job_id)[0]["state"].upper() in ("SUCCEEDED", "FAILED", "CANCELLED")
        self.wait(over, seconds, f"job {job_id} ends")
        return self.job(job_id)[0]

    def wait_for_step(self, job_id, step):
        def reached():
            job = self.job(job_id)[0]
            if job["state"].upper() == "FAILED":
                raise AssertionError(job)
            return int(job.get("steps_done", 0)) >= step
        self.wait(reached, 120, f"job {job_id} reaches step {step}")

    def get(self, path, token=None):
        return self.request("GET", path, token=token)

    def request(self, method, path, body=None, timeout=120, token=None):
        """Returns status and text. `token`: API key; None: the command line's; "": no key."""
        data = body.encode() if isinstance(body, str) else body
        headers = {"Content-Type": "application/json"}
        if token is None:
            token = os.environ.get("ESPALIER_TOKEN")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        url = f"{'https' if self.ca else 'http'}://{self.http}{path}"
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        context = ssl.create_default_context(cafile=self.ca) if self.ca else None
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=context) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
