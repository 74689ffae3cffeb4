"""Two coordinators that stand by for each other, with their jobs in etcd: killed, stopped and gone on, or ended in
order, a job ends with the curve of an undisturbed run, and what was acknowledged is there."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, PROGRAMS, Failed, read  # noqa: E402
import grpc_calls  # noqa: E402
from espalier.v1 import program_pb2, training_pb2  # noqa: E402
from session_client import cnn  # noqa: E402
from standby_pair import ETCD, TTL, Etcd, Pair, fixed_port  # noqa: E402

grpc_calls.use(training_pb2)

STEPS = 240
JOB = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", f"--steps={STEPS}", "--lr=3e-3",
       "--seed=5", "--checkpoint-every=15", "--clip-norm=1", "--only-data-parallel"]
LOST = 75  # exit status of a leader that may not lead any more


class TokenPair(Pair):
    """Both are started at once, with --tls=auto; a worker knows nothing but its token."""

    def start_daemon(self, until="/ready"):
        self.etcd = Etcd(self.folder)
        self.places = {name: (f"127.0.0.1:{fixed_port()}", f"127.0.0.1:{fixed_port()}") for name in "ab"}
        self.coordinators, self.logs_of = {}, {}
        self.daemon_flags = ["--tls=auto", "--open-probes", "--advertise=" + ",".join(grpc for grpc, _ in self.places.values())]
        self.ca = f"{self.folder}/data/tls/ca/current/ca.pem"
        for name in "ab":
            self.start(name)
        self.wait(lambda: self.leads("a") or self.leads("b"), 60, "one of them leads")
        self.leader, self.other = "ab" if self.leads("a") else "ba"
        self.wait(lambda: "standby" in self.http_of(self.other, "/ready")[1], 60, "the other one stands by")
        self.wait(lambda: self.http_of(self.leader, "/ready")[0] == 200, 60, "the leader is ready")
        self.token = self.cli("token", "create", "--role=worker", "--uses=3").stdout.strip()

    def cli(self, *args, check=True, timeout=300):
        env = {name: value for name, value in os.environ.items() if not name.startswith("ESPALIER_")}
        done = subprocess.run([PROGRAMS["espalier"], *args], env=dict(env, ESPALIER_HOME=f"{self.folder}/data/tls/client"),
                              capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise Failed(done.returncode, done.stdout, done.stderr)
        return done

    def start_worker(self, number=None):
        number = len(self.workers)
        with open(os.path.join(self.folder, f"token{number}"), "w", opener=lambda *at: os.open(*at, 0o600)) as file:
            file.write(self.token)
        self.workers.append(self.spawn("espalier-worker", f"--join-file={file.name}", f"--name=w{number}", "--threads=1",
                                       f"--cache-dir={self.folder}/cache{number}"))
        return self.workers[number]


@unittest.skipUnless(ETCD, "etcd is not installed: deploy/install.sh --tests")
class StandbyTest(unittest.TestCase):
    def curve(self, cluster, job_id):
        job = cluster.wait_for_job(job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", (job, cluster.job(job_id)[2]))
        _, reports, messages = cluster.job(job_id)
        steps = [int(report.get("step", 0)) for report in reports]
        self.assertEqual(steps, list(range(STEPS)), messages)  # every step once
        self.assertEqual(len(job["plan"]["devices"]), 2)
        return [report["values"]["loss"] for report in reports]

    def submit(self, cluster, name):
        """A job whose examples never come, always under the same key."""
        spec = training_pb2.TrainingSpec(
            name="acknowledged", graph=cnn(), batch_size=16, steps=4, seed=1,
            optimizer=program_pb2.Optimizer(name="sgd", learning_rate=program_pb2.LearningRateSchedule(peak=1e-2)))
        spec.dataset.format = training_pb2.Dataset.STREAM
        request = training_pb2.SubmitRequest(spec=spec, idempotency_key="key")
        with grpc_calls.Calls(cluster.places[name][0], "Training") as training:
            return training.Submit(request).job_id

    def test_a_token_is_good_for_both_coordinators(self):
        with TokenPair(lease=3.0) as cluster:
            job_id = cluster.train(*JOB)
            cluster.wait_for_step(job_id, 60)
            cluster.kill(cluster.coordinators[cluster.leader])
            cluster.wait_until_leads(cluster.other, TTL + 1)
            # Those that are there need no new token; one that was made before is good for others.
            self.curve(cluster, job_id)
            cluster.start_worker()
            cluster.wait_for_workers(3)

    def test_jobs_go_on_with_the_other_coordinator(self):
        with Pair(lease=3.0) as cluster:
            self.assertEqual(cluster.http_of("b", "/health"), (200, '{"status":"ok"}'))
            status, text = cluster.http_of("b", "/ready")
            self.assertEqual((status, json.loads(text)["status"]),
                             (503, f"standby; the leader is {cluster.places['a'][0]}"))
            with grpc_calls.Calls(cluster.places["b"][0], "Training") as training:
                code, text = grpc_calls.error_of(lambda: training.List(training_pb2.ListJobsRequest()))
            self.assertEqual((code.name, text), ("UNAVAILABLE", f"standby; the leader is {cluster.places['a'][0]}"))

            self.curve(cluster, cluster.train(*JOB, "--name=first"))  # also measures the operators
            undisturbed = self.curve(cluster, cluster.train(*JOB, "--name=undisturbed"))
            with self.subTest("etcd does not answer for a second"):
                job_id = cluster.train(*JOB, "--name=silence")
                cluster.wait_for_step(job_id, 30)
                cluster.etcd.process.send_signal(signal.SIGSTOP)
                time.sleep(1)
                cluster.etcd.process.send_signal(signal.SIGCONT)
                self.assertEqual(self.curve(cluster, job_id), undisturbed)
                self.assertEqual(cluster.job(job_id)[0]["attempts"], 1)
                self.assertIsNone(cluster.coordinators["a"].poll())

            with self.subTest("SIGKILL of the leader"):
                job_id = cluster.train(*JOB, "--name=killed")
                cluster.wait_for_step(job_id, 60)
                acknowledged = self.submit(cluster, "a")
                cluster.kill(cluster.coordinators["a"])
                cluster.wait_until_leads("b", TTL + 1)
                cluster.start("a")
                self.assertEqual(self.submit(cluster, "b"), acknowledged)
                self.assertEqual(cluster.job(acknowledged)[0]["spec"]["name"], "acknowledged")
                cluster.cli("jobs", "cancel", acknowledged)
                self.assertEqual(self.curve(cluster, job_id), undisturbed)

            with self.subTest("SIGSTOP of the leader for longer than its lease"):
                job_id = cluster.train(*JOB, "--name=stopped")
                cluster.wait_for_step(job_id, 60)
                stopped = cluster.coordinators["b"]
                stopped.send_signal(signal.SIGSTOP)
                cluster.wait_until_leads("a", TTL + 1)
                cluster.wait_for_step(job_id, 90)
                stopped.send_signal(signal.SIGCONT)
                self.assertEqual(stopped.wait(timeout=5), LOST)
                self.assertIn("this coordinator no longer leads", read(cluster.logs_of["b"]))
                cluster.start("b")
                self.assertEqual(self.curve(cluster, job_id), undisturbed)

            with self.subTest("SIGTERM of the leader"):
                cluster.wait(lambda: "standby; the leader is" in cluster.http_of("b", "/ready")[1], 30, "b stands by")
                job_id = cluster.train(*JOB, "--name=ended")
                cluster.wait_for_step(job_id, 60)
                cluster.coordinators["a"].send_signal(signal.SIGTERM)
                self.assertEqual(cluster.coordinators["a"].wait(timeout=30), 0)
                cluster.wait_until_leads("b", 1)
                self.assertEqual(self.curve(cluster, job_id), undisturbed)

            with self.subTest("the writes of all leaders are one sequence"):
                writes = cluster.etcd.last_writes()
                self.assertEqual([number for _, number in writes], list(range(1, len(writes) + 1)))
                epochs = [epoch for epoch, _ in writes]
                self.assertEqual(epochs, sorted(epochs))
                self.assertEqual(len(set(epochs)), 4)


if __name__ == "__main__":
    unittest.main()
