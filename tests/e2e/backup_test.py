"""espalier backup of a running daemon, its restoration, and a data folder that goes away."""
import json
import os
import stat
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed, read  # noqa: E402

JOB = ["--model=llama:tiny", "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "4", "--seed=1"]


class BackupTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(workers=1)
        self.addCleanup(self.cluster.close)
        self.data = os.path.join(self.cluster.folder, "data")

    def test_a_backup_of_a_running_daemon_is_restored(self):
        first = self.cluster.train(*JOB, "--steps=10", "--name=first")
        self.assertEqual(self.cluster.wait_for_job(first)["state"].upper(), "SUCCEEDED")
        running = self.cluster.train(*JOB, "--steps=100000", "--name=long")
        self.cluster.wait_for_step(running, 5)
        backup = os.path.join(self.cluster.folder, "store.db")
        self.cluster.run("backup", backup)
        self.assertEqual(stat.S_IMODE(os.stat(backup).st_mode), 0o600)
        with self.assertRaisesRegex(Failed, "exists; name a new file"):
            self.cluster.run("backup", backup)
        step = int(self.cluster.job(running)[0]["steps_done"])
        self.cluster.wait_for_step(running, step + 5)
        self.cluster.run("jobs", "cancel", running)
        self.assertEqual(os.listdir(os.path.join(self.data, "backup.tmp")), [])

        self.cluster.kill(self.cluster.daemon)
        for name in os.listdir(self.data):
            if name.startswith("espalier.db"):
                os.remove(os.path.join(self.data, name))
        os.rename(backup, os.path.join(self.data, "espalier.db"))
        self.cluster.start_daemon()
        states = {job["id"]: job["state"].upper() for job in self.cluster.run("jobs")["jobs"]}
        self.assertEqual(states[first], "SUCCEEDED")
        self.assertNotIn(states[running], ("CANCELLED", "FAILED"), "it was running when the backup was made")
        self.assertEqual(sorted(self.cluster.losses(first)), list(range(10)))
        names = [artifact["name"] for artifact in self.cluster.run("models")["artifacts"]]
        self.assertIn("first", names)
        self.cluster.wait_for_step(running, 1)

    def test_a_data_folder_that_goes_away_ends_readiness(self):
        os.rename(self.data, self.data + ".away")
        self.cluster.wait(lambda: self.cluster.get("/ready")[0] == 503, 20, "it is not ready")
        self.assertEqual(self.cluster.get("/health")[0], 200)
        with self.assertRaisesRegex(Failed, "folder of the artifacts, .* is gone"):
            self.cluster.train(*JOB, "--steps=10")
        with self.assertRaisesRegex(Failed, "was moved or removed"):
            self.cluster.run("backup", os.path.join(self.cluster.folder, "store.db"))
        self.assertFalse(os.path.exists(self.data), "nothing stands in the way of the folder that is put back")
        self.assertIn("espalier_data_folder_present 0", self.cluster.get("/metrics")[1])
        os.rename(self.data + ".away", self.data)
        self.cluster.wait(lambda: self.cluster.get("/ready")[0] == 200, 20, "it is ready again")
        job = self.cluster.train(*JOB, "--steps=10")
        self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")

    def test_the_log_moves_into_the_store(self):
        self.assertEqual(self.cluster.wait_for_job(self.cluster.train(*JOB, "--steps=10"))["state"].upper(), "SUCCEEDED")
        log = os.path.join(self.data, "espalier.db-wal")
        self.cluster.wait(lambda: os.path.getsize(log) == 0, 60, "nothing is left in the write-ahead log")
        self.assertGreater(os.path.getsize(os.path.join(self.data, "espalier.db")), 4096)


class InheritedSocketsTest(unittest.TestCase):
    def test_a_local_worker_does_not_hold_the_ports_of_the_daemon(self):
        with Cluster(workers=0, daemon_flags=["--local-workers=1"]) as cluster:
            children = cluster.children()
            self.assertTrue(children, "no local worker was found")
            listening = set()
            for table in ("tcp", "tcp6"):
                for line in read(f"/proc/{cluster.daemon.pid}/net/{table}").splitlines()[1:]:
                    words = line.split()
                    port = int(words[1].rpartition(":")[2], 16)
                    if words[3] == "0A" and f":{port}" in (self.port(cluster.grpc), self.port(cluster.http)):
                        listening.add(f"socket:[{words[9]}]")
            self.assertEqual(len(listening), 2)
            held = {os.readlink(f"/proc/{child}/fd/{fd}") for child in children
                    for fd in os.listdir(f"/proc/{child}/fd")}
            self.assertEqual(held & listening, set(), json.dumps(sorted(held)))

    @staticmethod
    def port(address):
        return ":" + address.rpartition(":")[2]


if __name__ == "__main__":
    unittest.main()
