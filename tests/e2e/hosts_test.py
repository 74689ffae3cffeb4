"""Workers on other hosts: those that cannot take part do not join, and a network that loses one direction between two
of them is found out in the documented time."""
import os
import re
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, read  # noqa: E402
from hosts import COORDINATOR, Hosts, Recorder, enter  # noqa: E402

REASON = enter()
FIRST, SECOND, THIRD = "10.77.0.2", "10.77.0.3", "10.77.0.4"
SILENCE = 10  # seconds: twice the lease of 5 s
JOB = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", "--lr=3e-3", "--seed=5",
       "--only-data-parallel"]


@unittest.skipIf(REASON, REASON)
class HostsTest(unittest.TestCase):
    def setUp(self):
        self.hosts = Hosts(3)
        self.addCleanup(self.hosts.close)
        self.cluster = self.enterContext(Cluster(workers=0, lease=5, daemon_flags=["--insecure"], host=COORDINATOR))

    def worker(self, host, *flags, prefix=()):
        return self.cluster.spawn("espalier-worker", f"--coordinator={self.cluster.grpc}", f"--name=on-{host}",
                                  "--threads=1", "--insecure", f"--cache-dir={self.cluster.folder}/cache-{host}",
                                  *flags, prefix=[*self.hosts.prefix(host), *prefix])

    def start_workers(self, *hosts, flags=()):
        for host in hosts or (FIRST, SECOND):
            self.cluster.workers.append(self.worker(host, f"--listen={host}:0", *flags))
        self.cluster.wait_for_workers(len(self.cluster.workers))

    def refusal(self, process, workers=0):
        """What a worker says that ends because it may not join, where there are so many others."""
        log = self.cluster.logs[-1]
        self.cluster.workers.append(process)
        self.assertEqual(process.wait(timeout=30), 1, read(log))
        self.assertEqual(len(self.cluster.run("status").get("workers", [])), workers)
        return read(log)

    def test_a_worker_that_the_coordinator_cannot_reach_is_refused(self):
        said = self.refusal(self.worker(FIRST, "--listen=127.0.0.1:0"))
        self.assertRegex(said, r"cannot reach this worker at 127\.0\.0\.1:\d+ .*--advertise=HOST:PORT")
        said = self.refusal(self.worker(FIRST, f"--listen={FIRST}:0", "--advertise=10.77.0.99:4242"))
        self.assertIn("cannot reach this worker at 10.77.0.99:4242", said)

    def test_a_direction_that_fails_between_workers_is_named_in_time_and_the_job_goes_on(self):
        self.start_workers()
        steps = 800
        job = self.cluster.train(*JOB, f"--steps={steps}", "--checkpoint-every=50")
        self.cluster.wait_for_step(job, 100)
        self.hosts.cut(FIRST, SECOND)
        begin = time.time()
        pair = rf"nothing has arrived from rank \d \({FIRST}\) at rank \d \({SECOND}\) for {SILENCE}s"
        self.cluster.wait(lambda: re.search(pair, " ".join(self.cluster.job(job)[2])), SILENCE + 10, "the job names the pair")
        print(f"named after {time.time() - begin:.1f} s")
        self.assertTrue(all(worker["state"].upper() in ("IDLE", "BUSY")
                            for worker in self.cluster.run("status")["workers"]))  # the coordinator reaches both
        self.hosts.mend(FIRST, SECOND)
        done = self.cluster.wait_for_job(job)
        self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
        self.assertEqual(sorted(self.cluster.losses(job)), list(range(steps)))

    def test_a_job_whose_workers_cannot_meet_says_which(self):
        self.start_workers()
        self.hosts.cut(SECOND, FIRST)
        job = self.cluster.train(*JOB, "--steps=20")
        pair = rf"rank \d \({FIRST}\).* rank \d \({SECOND}\)|rank \d \({SECOND}\).* rank \d \({FIRST}\)"
        self.cluster.wait(lambda: re.search(pair, " ".join(self.cluster.job(job)[2])), SILENCE + 10, "the job names the pair")
        self.hosts.mend(SECOND, FIRST)
        self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")

    def test_a_pair_that_failed_is_avoided(self):
        self.start_workers(FIRST, SECOND, THIRD)
        self.hosts.cut(SECOND, FIRST)
        job = self.cluster.train(*JOB, "--steps=60", "--max-devices=2", "--checkpoint-every=20")
        done = self.cluster.wait_for_job(job)
        said = " ".join(self.cluster.job(job)[2])
        self.assertEqual(done["state"].upper(), "SUCCEEDED", said)
        self.assertEqual(done["attempts"], 2, said)
        for host in (FIRST, SECOND):
            self.assertIn(f"(on-{host})", said)
        self.assertRegex(said, r"without worker \S+ \(on-10\.77\.0\.\d\), which others could not reach")
        # So does the next job at once.
        begin = time.time()
        job = self.cluster.train(*JOB, "--steps=20", "--max-devices=2")
        self.assertEqual(self.cluster.wait_for_job(job)["attempts"], 1)
        self.assertLess(time.time() - begin, SILENCE)

    def test_without_other_workers_the_job_goes_on_with_one_of_the_pair(self):
        self.start_workers()
        self.hosts.cut(SECOND, FIRST)
        job = self.cluster.train(*JOB, "--steps=20")
        done = self.cluster.wait_for_job(job)
        self.assertEqual((done["state"].upper(), done["attempts"]), ("SUCCEEDED", 3), self.cluster.job(job)[2])

    def test_tensors_between_hosts_pass_in_clear_only_where_the_network_is_trusted(self):
        # The gradient of an embedding is zero for every token that the batch lacks.
        pattern = bytes(512)
        losses, seen = [], []
        for flags in ((), ("--trusted-network",)):
            self.start_workers(flags=flags)
            with Recorder(FIRST, SECOND) as recorder:
                job = self.cluster.train(*JOB, "--steps=10")
                self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED", self.cluster.job(job)[2])
            self.assertGreater(sum(map(len, recorder.packets)), 1 << 20)
            seen.append(sum(pattern in packet for packet in recorder.packets))
            losses.append(self.cluster.losses(job))
            for worker in self.cluster.workers:
                worker.terminate()
                worker.wait()
            self.cluster.workers.clear()
        self.assertEqual(seen[0], 0)
        self.assertGreater(seen[1], 10)
        self.assertEqual(losses[0], losses[1])

    def test_a_worker_that_does_not_agree_on_encryption_is_refused_and_jobs_go_on(self):
        self.start_workers(FIRST)
        said = self.refusal(self.worker(SECOND, f"--listen={SECOND}:0", "--trusted-network"), workers=1)
        self.assertRegex(said, rf"--trusted-network, and workers of other hosts do not: w\d \(on-{FIRST}\); start it without")
        self.cluster.workers.pop()
        self.start_workers(SECOND)
        job = self.cluster.train(*JOB, "--steps=10")
        self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED", self.cluster.job(job)[2])


if __name__ == "__main__":
    unittest.main()
