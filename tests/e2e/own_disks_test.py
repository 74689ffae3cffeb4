"""Hosts that share no disk: each worker has its own mount namespace, in which the coordinator's data folder is empty.
Jobs train, lose a host, take it back and finish with the curve and the model of one host, bit for bit; the model is
served on two of the hosts."""
import glob
import hashlib
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, read  # noqa: E402
from hosts import COORDINATOR, Hosts, enter  # noqa: E402

REASON = enter()
HOSTS = ["10.77.0.2", "10.77.0.3", "10.77.0.4"]
STEPS = 240
# Seconds: each way, where the first job of a network measures it by hundreds of messages; and longer than a lease.
DELAY = float(os.environ.get("ESPALIER_TEST_DELAY", "0.01"))
PARTITION = float(os.environ.get("ESPALIER_TEST_PARTITION", "8"))
JOB = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "12", f"--steps={STEPS}", "--lr=3e-3",
       "--seed=5", "--checkpoint-every=15", "--clip-norm=1"]


@unittest.skipIf(REASON, REASON)
class OwnDisksTest(unittest.TestCase):
    def make_hosts(self, **network):
        self.hosts = Hosts(len(HOSTS), **network)
        self.addCleanup(self.hosts.close)

    def cluster(self, *flags, **options):
        return self.enterContext(Cluster(workers=0, daemon_flags=["--insecure", *flags], host=COORDINATOR, **options))

    def start_worker(self, cluster, number):
        """On its host, whose disk lacks what the coordinator's has."""
        host = HOSTS[number]
        alone = ["unshare", "--mount", "sh", "-c",
                 f'mount -t tmpfs none {cluster.folder}/data && mount -t tmpfs none {cluster.folder}/disk && exec "$@"', "sh"]
        os.makedirs(f"{cluster.folder}/disk", exist_ok=True)
        worker = cluster.spawn("espalier-worker", f"--coordinator={cluster.grpc}", f"--name=w{number}", "--threads=1",
                               "--insecure", f"--listen={host}:0", f"--cache-dir={cluster.folder}/disk",
                               prefix=[*self.hosts.prefix(host), *alone])
        while len(cluster.workers) <= number:
            cluster.workers.append(None)
        cluster.workers[number] = worker

    def start_workers(self, cluster, count=len(HOSTS)):
        for number in range(count):
            self.start_worker(cluster, number)
        cluster.wait_for_workers(count)

    def outcome(self, cluster, job_id):
        job = cluster.wait_for_job(job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", (job, cluster.job(job_id)[2]))
        curve = cluster.losses(job_id)
        self.assertEqual(sorted(curve), list(range(STEPS)))
        folder = os.path.join(cluster.folder, "downloaded", job["output_model"])
        cluster.cli("models", "download", job["output_model"], folder)
        weights, = glob.glob(f"{folder}/**/*.safetensors", recursive=True)
        with open(weights, "rb") as file:
            return {"curve": curve, "evaluation": job["evaluation"], "weights": hashlib.sha256(file.read()).hexdigest()}

    def test_hosts_without_a_common_disk_train_as_one_host_does_and_serve(self):
        self.make_hosts()
        apart = self.cluster()
        self.start_workers(apart)
        job = apart.train(*JOB, "--only-data-parallel", "--name=lm")
        apart.wait_for_step(job, 60)
        apart.kill(apart.workers[1])
        apart.wait(lambda: apart.job(job)[0]["state"].upper() != "RUNNING", 30, "the loss is seen")
        self.start_worker(apart, 1)
        result = self.outcome(apart, job)
        record, _, messages = apart.job(job)
        self.assertGreaterEqual(record["attempts"], 2)
        read = [re.match(r"checkpoint read: ([\d.]+) MB from the ranks' own disks, ([\d.]+) MB from copies on other "
                         r"hosts, ([\d.]+) MB from the checkpoint store", message) for message in messages]
        read = [[float(number) for number in found.groups()] for found in read if found]
        self.assertEqual(len(read), record["attempts"] - 1, messages)
        for own_disk, other_hosts, _ in read:
            self.assertGreater(own_disk, 0, messages)
            self.assertGreater(other_hosts, 0, messages)
        self.assertEqual(len(record["plan"]["devices"]), len(HOSTS))
        plan = os.path.join(apart.folder, "plan.json")
        with open(plan, "w") as file:
            json.dump(record["plan"], file)

        # The data folder that the workers see is empty still.
        seen = os.listdir(f"/proc/{apart.workers[0].pid}/root{apart.folder}/data")
        self.assertEqual(seen, [])

        with Cluster(workers=len(HOSTS)) as together:
            same = together.train(*JOB, f"--import-strategy={plan}", "--name=lm")
            self.assertEqual(self.outcome(together, same), result)

        self.serve(apart)

    def serve(self, apart):
        """The model that was trained, in the coordinator's process and on two of the hosts."""
        def answer(name):
            body = json.dumps({"model": name, "prompt": "And God said", "max_tokens": 24, "temperature": 0})
            status, text = apart.request("POST", "/v1/completions", body)
            self.assertEqual(status, 200, text)
            return json.loads(text)["choices"][0]["text"]
        apart.run("serve", "lm", "--name=here")
        apart.run("serve", "lm", "--name=far", "--tensor-parallel=2")
        self.assertEqual(answer("far"), answer("here"))

        # The blocks of the weights are cached on the hosts; a host that comes back does not need them again.
        served = [number for number, worker in enumerate(apart.workers)
                  if glob.glob(f"/proc/{worker.pid}/root{apart.folder}/disk/*/*")]
        self.assertGreaterEqual(len(served), 2)

    def test_initial_models_reach_the_hosts(self):
        self.make_hosts()
        apart = self.cluster()
        self.start_workers(apart, 2)
        first = apart.train(*JOB[:-3], "--steps=30", "--name=first")
        self.assertEqual(apart.wait_for_job(first)["state"].upper(), "SUCCEEDED")
        loss = apart.losses(first)
        job = apart.train("--init=first", *JOB[1:-3], "--steps=10", "--name=second")
        done = apart.wait_for_job(job)
        self.assertEqual(done["state"].upper(), "SUCCEEDED", (done, apart.job(job)[2]))
        self.assertLess(apart.losses(job)[0], loss[0] - 0.5)

    def test_a_coordinator_that_dies_while_shards_are_sent_loses_nothing(self):
        self.make_hosts()
        apart = self.cluster()
        self.start_workers(apart, 2)
        job = apart.train(*JOB, "--only-data-parallel", "--checkpoint-every=5", "--record=off")
        for step in (40, 90):
            apart.wait_for_step(job, step)
            apart.kill(apart.daemon)
            apart.start_daemon(until="/health")
        self.outcome(apart, job)
        left = glob.glob(f"{apart.folder}/data/checkpoints/*/*/*")
        self.assertEqual(left, [], "checkpoints of a job that has succeeded")

    def test_the_coordinator_may_be_told_to_stream(self):
        cluster = self.enterContext(Cluster(workers=0, daemon_flags=["--checkpoint-store=coordinator"]))
        cluster.start_worker()
        cluster.wait_for_workers(1)
        self.assertIn("through the coordinator", read(cluster.logs[-1]))
        job = cluster.train(*JOB[:-3], "--steps=20", "--checkpoint-every=10")
        self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")

    def test_a_partition_costs_no_step(self):
        self.make_hosts()
        apart = self.cluster()
        self.start_workers(apart, 2)
        job = apart.train(*JOB, "--only-data-parallel")
        apart.wait_for_step(job, 60)
        self.hosts.unplug(HOSTS[0], PARTITION)
        self.outcome(apart, job)

    def test_a_network_that_loses_frames_trains(self):
        self.train_briefly(loss=0.05)

    def test_a_slow_network_trains(self):
        self.train_briefly(delay=DELAY)

    def train_briefly(self, **network):
        self.make_hosts(**network)
        # The default lease: several heartbeats in a row may be late.
        apart = self.cluster(lease=10)
        self.start_workers(apart, 2)
        job = apart.train(*JOB[:-3], "--steps=6", "--checkpoint-every=3", "--only-data-parallel")
        done = apart.wait_for_job(job)
        self.assertEqual((done["state"].upper(), done["attempts"]), ("SUCCEEDED", 1), apart.job(job)[2])
        self.assertEqual(sorted(apart.losses(job)), list(range(6)))


if __name__ == "__main__":
    unittest.main()
