"""An etcd, and two coordinators that stand by for each other with their jobs in it."""
import base64
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time

from cluster import Cluster, read

ETCD = shutil.which("etcd")
TTL = 3.0


def fixed_port():
    """A free port below those that the system gives to clients: it must not be taken while nobody listens."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Etcd:
    def __init__(self, folder):
        self.port = fixed_port()
        peers = f"http://127.0.0.1:{fixed_port()}"
        clients = f"http://127.0.0.1:{self.port}"
        self.log = os.path.join(folder, "etcd.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [ETCD, "--name=test", f"--data-dir={folder}/etcd", f"--listen-client-urls={clients}",
                 f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}",
                 f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=test={peers}"], stdout=log, stderr=log)
        end = time.time() + 30
        while True:
            try:
                self.ask("range", key=b"x")
                return
            except OSError:
                if time.time() > end or self.process.poll() is not None:
                    raise AssertionError(f"etcd does not answer: {read(self.log)[-2000:]}")
                time.sleep(0.05)

    def ask(self, what, **fields):
        """A call of etcd's JSON gateway."""
        body = {key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                for key, value in fields.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", f"/v3/kv/{what}", json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def last_writes(self):
        """All values that PREFIX/last has had: (epoch, number), in the order of etcd's revisions."""
        writes, key = [], b"/espalier/last"
        revision = int(self.ask("range", key=key)["header"]["revision"])
        while revision > 0:
            found = self.ask("range", key=key, revision=revision).get("kvs")
            if not found:
                break
            value = base64.b64decode(found[0]["value"])
            writes.append(tuple(varints(value)))
            revision = int(found[0]["mod_revision"]) - 1
        return writes[::-1]


def varints(message):
    """The fields of a protobuf message that has numbers only."""
    at = 0
    while at < len(message):
        at += 1  # the tag
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        yield value


class Pair(Cluster):
    """Coordinators "a" and "b" on one data folder; workers and the command line are told both addresses."""

    def start_daemon(self, until="/ready"):
        self.etcd = Etcd(self.folder)
        self.places = {name: (f"127.0.0.1:{fixed_port()}", f"127.0.0.1:{fixed_port()}") for name in "ab"}
        self.coordinators, self.logs_of = {}, {}
        self.grpc = ",".join(grpc for grpc, _ in self.places.values())
        self.start("a")
        self.wait(lambda: self.leads("a"), 60, "a leads")
        self.start("b")
        self.wait(lambda: self.http_of("b", "/health")[0] == 200, 60, "b stands by")

    def data_dir(self, name):
        return f"{self.folder}/data"

    def start(self, name):
        grpc, http_address = self.places[name]
        self.coordinators[name] = self.spawn(
            "espalierd", f"--listen={grpc}", f"--http-listen={http_address}", f"--data-dir={self.data_dir(name)}",
            f"--lease-seconds={self.lease}", "--serving-threads=1", f"--leader-lease-seconds={TTL}",
            f"--job-store=etcd://127.0.0.1:{self.etcd.port}", *self.measure_flags, *self.daemon_flags)
        self.logs_of[name] = self.logs[-1]

    def http_of(self, name, path):
        self.http = self.places[name][1]
        return self.request("GET", path, timeout=5)

    def leads(self, name):
        return "this coordinator leads" in read(self.logs_of[name])

    def wait_until_leads(self, name, seconds):
        begin = time.time()
        self.wait(lambda: self.leads(name), seconds, f"{name} leads")
        print(f"{name} leads after {time.time() - begin:.2f} s", flush=True)
        self.wait(lambda: self.http_of(name, "/ready")[0] == 200, 30, f"{name} is ready")

    def close(self):
        for process in self.coordinators.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        if getattr(self, "etcd", None) is not None:
            self.etcd.process.send_signal(signal.SIGCONT)
            self.etcd.process.kill()
            self.etcd.process.wait()
        super().close()
