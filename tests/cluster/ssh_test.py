"""`espalier launch ssh` on hosts that share nothing: it brings the programs, starts a coordinator and workers, trains, and
stops exactly that; errors say which host, what failed there and what to do."""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
from cluster import DATA, PROGRAMS, read  # noqa: E402
from pages import commands  # noqa: E402
from remote_hosts import RemoteHosts, enter  # noqa: E402

REASON = enter()
TRAIN = ["train", "--model=llama:tiny", "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", "--steps=3",
         "--only-data-parallel"]


def running():
    """Command lines of the programs that a launch starts."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = read(path).split("\0")
        except OSError:
            continue  # it has ended
        if os.path.basename(words[0]) in ("espalierd", "espalier-worker"):
            found.append(words)
    return found


@unittest.skipIf(REASON, REASON)
class SshTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="espalier-ssh-"))
        cls.hosts = RemoteHosts(cls.folder, 3)
        cls.addClassCleanup(cls.hosts.close)
        cls.bundle = f"{cls.folder}/bundle"
        os.mkdir(cls.bundle)
        os.mkdir(f"{cls.folder}/user")
        for name in ("espalierd", "espalier-worker"):
            shutil.copy(PROGRAMS[name], f"{cls.bundle}/{name}")

    def setUp(self):
        self.assertEqual(running(), [])

    def file(self, text):
        path = f"{self.folder}/{self.id().rpartition('.')[2]}.txt"
        with open(path, "w") as file:
            file.write(text)
        return path

    def env(self):
        # The coordinator that may run here keeps its data in the home.
        return dict(os.environ, HOME=f"{self.folder}/user")

    def command(self, hosts, *arguments, config=None, home="home"):
        return [PROGRAMS["espalier"], "launch", "ssh", hosts, f"--home={self.folder}/{home}",
                f"--ssh=ssh -F {config or self.folder + '/config'}", *arguments]

    def launch(self, hosts, *arguments, config=None, check=True, home="home"):
        done = subprocess.run(self.command(hosts, *arguments, config=config, home=home), capture_output=True, text=True, timeout=120,
                              env=self.env())
        if check:
            self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}")
        return done

    def logs(self):
        return "\n".join(self.hosts.on(name, "sh", "-c", "tail -n 20 ~root/.espalier/launch/*/*.log 2>/dev/null || true")
                         for name in self.hosts.names)

    def fails(self, hosts, *arguments, config=None):
        done = self.launch(hosts, *arguments, config=config, check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertEqual(running(), [])
        return done.stderr

    def test_launch_train_and_stop(self):
        hosts = self.file("host1\nroot@host2  # the last one\n")
        bundle = f"--bundle={self.bundle}"
        done = self.launch(hosts, bundle, "--", *TRAIN)
        self.assertIn("copying the programs to 2 hosts", done.stdout)
        self.assertIn("2 of 2 workers have joined", done.stdout)
        self.assertRegex(done.stdout, r"root@host2 +worker-1 +host2 +cpu")
        self.assertIn("succeeded", done.stdout)
        self.assertEqual(sorted(os.path.basename(words[0]) for words in running()),
                         ["espalier-worker"] * 2 + ["espalierd"])
        # A stranger's process, as another launch's or a user's own.
        stranger = subprocess.Popen([*self.hosts.prefix("host1"), "sleep", "100"], cwd="/")
        self.addCleanup(stranger.kill)
        self.assertIn("has been launched already", self.launch(hosts, bundle, check=False).stderr)
        # As from another machine with its hosts file at the same path, and the same account on the hosts.
        done = self.launch(hosts, bundle, check=False, home="another")
        self.assertIn("coordinator of this launch runs already", done.stderr)
        self.assertEqual(len(running()), 3)
        self.assertIn("nothing is running", self.launch(hosts, "--stop", check=False, home="another").stderr)
        self.assertIn("3 processes stopped", self.launch(hosts, "--stop").stdout)
        self.assertEqual(running(), [])
        self.assertIsNone(stranger.poll())
        self.assertIn("nothing is running", self.fails(hosts, "--stop"))

        # Again: the hosts have the programs, and the coordinator its models.
        done = self.launch(hosts, bundle, "--json")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertNotIn("copy", [event["event"] for event in events])
        models = subprocess.run([PROGRAMS["espalier"], "models", f"--home={events[-1]['home']}"], capture_output=True, text=True)
        self.assertIn("job-1", models.stdout, models.stderr)
        self.launch(hosts, "--stop")
        self.assertEqual(running(), [])

    def test_the_coordinator_may_be_here(self):
        name, address = ("host3-ipv6", "[fd79::100]:") if self.hosts.ipv6 else ("host3", "10.79.0.100:")
        hosts = self.file(f"{name} slots=2\n")
        done = self.launch(hosts, f"--bundle={self.bundle}", "--coordinator-here", "--", *TRAIN)
        self.assertIn(f"coordinator on this host: {address}", done.stdout)
        self.assertRegex(done.stdout, rf"{name} +worker-1 +{name}-1 +cpu")
        self.assertIn("succeeded", done.stdout)
        self.launch(hosts, "--stop")
        self.assertEqual(running(), [])
        if not self.hosts.ipv6:
            self.skipTest("no IPv6 on this machine: only IPv4 was tried")

    def test_the_commands_of_the_page_on_hosts_that_share_a_home(self):
        for name in ("host1", "host3"):
            self.hosts.on(name, "sh", "-ec", "mkdir -p ~root/.espalier; mount --bind /mnt ~root/.espalier")
            self.addCleanup(self.hosts.on, name, "sh", "-c", "umount ~root/.espalier")
        work = f"{self.folder}/page"
        os.makedirs(f"{work}/bin")
        os.symlink(os.path.join(DATA, "genesis.txt"), f"{work}/book.txt")
        with open(f"{work}/hosts.txt", "w") as file:
            file.write("host1\nhost3\n")
        with open(os.open(f"{work}/bin/ssh", os.O_WRONLY | os.O_CREAT, 0o700), "w") as file:
            file.write(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/config "$@"\n')
        # The archive, as deploy/bundle.sh makes it.
        os.mkdir(f"{work}/bin/lib")
        for name, path in PROGRAMS.items():
            shutil.copy(path, f"{work}/bin/{name}")
        env = dict(os.environ, PATH=f"{work}/bin:{os.environ['PATH']}", ESPALIER_HOME=f"{work}/home")
        for block in commands("ssh.md"):
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=work, env=env, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}")
            self.assertIn("succeeded", done.stdout)
            self.assertIn("3 processes stopped", done.stdout)
        self.assertEqual(running(), [])

    def test_hosts_that_do_not_let_in(self):
        bundle = f"--bundle={self.bundle}"
        said = self.fails(self.file("host1\nhost9\n"), bundle)
        self.assertIn("Could not resolve hostname host9", said)
        self.assertIn("remedy: check the name in the hosts file", said)
        with open(f"{self.folder}/config") as file:
            config = file.read()
        cases = {"unknown": (f"UserKnownHostsFile {self.folder}/known_hosts", "UserKnownHostsFile /dev/null",
                             "remedy: its host key is not known here"),
                 "denied": (f"IdentityFile {self.folder}/key", f"IdentityFile {self.folder}/other",
                            "remedy: it takes none of your keys"),
                 "closed": ("Host *\n", "Host *\n  Port 2222\n", "remedy: no sshd listens there")}
        for name, (before, after, remedy) in cases.items():
            with self.subTest(name), open(f"{self.folder}/config-{name}", "w") as file:
                file.write(config.replace(before, after))
                file.flush()
                said = self.fails(self.file("host1\nhost2\n"), bundle, config=file.name)
                for host in ("host1", "host2"):
                    self.assertRegex(said, f"{host}: `ssh -F .* {host}` failed")
                self.assertIn(remedy, said)

    def test_a_start_that_fails_leaves_nothing(self):
        for name in ("host1", "host2"):
            self.hosts.on(name, "mkdir", "-p", "/tmp/bin")
            pid = self.hosts.holders[name].pid
            for program in ("espalierd", "espalier-worker"):
                shutil.copy(PROGRAMS[program], f"/proc/{pid}/root/tmp/bin/{program}")
        with open(f"/proc/{self.hosts.holders['host2'].pid}/root/tmp/bin/espalier-worker", "wb") as file:
            file.write(b"#!/bin/sh\necho \"espalier-worker: /lib/libc.so.6: version 'GLIBC_2.99' not found\" >&2\nexit 1\n")
        said = self.fails(self.file("host1\nhost2\n"), "--remote-bin=/tmp/bin")
        self.assertIn("host2: cannot run worker host2", said)
        self.assertIn("GLIBC_2.99", said)
        self.assertIn("remedy: its C library is older", said)
        self.assertIn("nothing is running", self.fails(self.file("host1\nhost2\n"), "--stop"))
        # Ctrl-C, and again while it stops.
        with subprocess.Popen(self.command(self.file("host3\n"), f"--bundle={self.bundle}"), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=self.env()) as process:
            for line in process.stdout:
                if line.startswith(("coordinator on", "the start has failed")):
                    process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), 130)
            self.assertIn("interrupted", process.stderr.read())
        self.assertIn("nothing is running", self.fails(self.file("host3\n"), "--stop"))

    def test_a_hosts_file_that_asks_too_much(self):
        self.assertIn("host1 has 0 GPUs, and line 2 of the hosts file asks for cuda:0",
                      self.fails(self.file("# GPUs\nhost1 devices=cuda:0\n"), f"--bundle={self.bundle}"))


if __name__ == "__main__":
    unittest.main()
