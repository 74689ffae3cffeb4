"""The commands of deploy/systemd, run as a service manager runs them: the worker joins by its credential, and keeps what it has
in the folders of its unit."""
import configparser
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, PROGRAMS, ROOT, free_port, write_private  # noqa: E402

UNITS = os.path.join(ROOT, "deploy", "systemd")


def unit(name):
    parsed = configparser.ConfigParser(interpolation=None, strict=True, comment_prefixes=("#",))
    parsed.optionxform = str
    assert parsed.read(os.path.join(UNITS, f"{name}.service")), name
    return parsed["Service"]


class SystemdUnitsTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        for name in ("state", "cache", "credentials"):
            os.mkdir(os.path.join(self.folder, name))

    def start(self, name, flags):
        """flags: those that /etc/espalier/NAME.env would have."""
        service = unit(name)
        specifiers = {"%S": os.path.join(self.folder, "state"), "%d": os.path.join(self.folder, "credentials")}
        variables = {}
        for variable, specifier, key in (("STATE_DIRECTORY", "state", "StateDirectory"), ("CACHE_DIRECTORY", "cache", "CacheDirectory")):
            if key in service:
                variables[variable] = os.path.join(self.folder, specifier, service[key])
                os.makedirs(variables[variable], exist_ok=True)
        words = []
        for word in service["ExecStart"].split():
            for specifier, path in specifiers.items():
                word = word.replace(specifier, path)
            words += flags if word.startswith("$") else [word]
        self.assertEqual(words[0], f"/usr/local/bin/{name}")
        process = subprocess.Popen([PROGRAMS[name], *words[1:]], env={"PATH": os.environ["PATH"], **variables})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, float(service["TimeoutStopSec"])

    def espalier(self, *words):
        home = os.path.join(self.folder, "state", "espalier", "tls", "client")
        return subprocess.run([PROGRAMS["espalier"], *words], capture_output=True, text=True, timeout=120,
                              env={"PATH": os.environ["PATH"], "ESPALIER_HOME": home})

    def wait(self, what, condition, seconds=60):
        end = time.time() + seconds
        while not condition():
            self.assertLess(time.time(), end, what)
            time.sleep(0.1)

    def test_a_worker_joins_trains_and_leaves_and_finds_its_certificate_again(self):
        port = free_port()
        coordinator, patience = self.start("espalierd", [f"--listen=127.0.0.1:{port}", f"--http-listen=127.0.0.1:{free_port()}"])
        self.wait("the coordinator answers", lambda: self.espalier("status").returncode == 0)
        token = self.espalier("token", "create", "--role=worker", "--uses=1")
        self.assertEqual(token.returncode, 0, token.stderr)
        credential = os.path.join(self.folder, "credentials", unit("espalier-worker")["LoadCredential"].partition(":")[0])
        write_private(credential, token.stdout)
        for start in range(3):
            # A token, also an old one, tells the coordinator's address; who empties its file has to.
            where = [f"--coordinator=127.0.0.1:{port}"] if start == 2 else []
            worker, worker_patience = self.start("espalier-worker", ["--threads=1", *where])
            self.wait("the worker joins", lambda: "idle" in self.espalier("status").stdout)
            if start == 0:
                trained = self.espalier("train", "--model=llama:tiny", "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=16",
                                        "-b", "4", "--steps=2")
                self.assertEqual(trained.returncode, 0, trained.stderr)
                self.assertTrue(os.listdir(os.path.join(self.folder, "cache", "espalier")))
                # Its certificate is enough from now on.
                tokens = json.loads(self.espalier("token", "list", "--json").stdout)["tokens"]
                revoked = self.espalier("token", "revoke", tokens[0]["id"])
                self.assertEqual(revoked.returncode, 0, revoked.stderr)
            if start == 1:
                write_private(credential, "")
            worker.send_signal(signal.SIGTERM)
            self.assertEqual(worker.wait(worker_patience), 0)
        coordinator.send_signal(signal.SIGTERM)
        self.assertEqual(coordinator.wait(patience), 0)

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "systemd-analyze is not installed")
    def test_systemd_knows_every_line(self):
        units = [os.path.join(self.folder, name) for name in os.listdir(UNITS)]
        self.assertEqual(len(units), 2)
        for path in units:
            with open(os.path.join(UNITS, os.path.basename(path))) as source, open(path, "w") as copy:
                copy.write(source.read().replace("/usr/local/bin/espalier", "/bin/true #"))
        done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
