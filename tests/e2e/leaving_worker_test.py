"""SIGTERM of workers: their jobs write a checkpoint and go on without them, models move, and no step is lost."""
import json
import os
import re
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, read  # noqa: E402
from language_models import train  # noqa: E402

STEPS = 250
# It writes a checkpoint at its end only.
JOB = ["--model=llama:hidden=128,layers=2,heads=4,kv_heads=2,intermediate=256,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", f"--steps={STEPS}", "--lr=3e-4", "--seed=5",
       "--checkpoint-every=100000", "--clip-norm=1", "--only-data-parallel"]


def leave(process, seconds=20, by=signal.SIGTERM):
    """Returns its exit code and how long it took."""
    begin = time.time()
    process.send_signal(by)
    return process.wait(seconds), time.time() - begin


class LeavingWorkerTest(unittest.TestCase):
    def check(self, cluster, job_id, said, undisturbed):
        """The job went on where it was: `said` is what its log says then, with the step in parentheses."""
        job = cluster.wait_for_job(job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        self.assertEqual(int(job["attempts"]), 2)
        _, _, messages = cluster.job(job_id)
        steps = [int(match[1]) for match in (re.fullmatch(said, message) for message in messages) if match]
        self.assertEqual(len(steps), 1, messages)
        self.assertEqual([message for message in messages if "going back" in message or "starting again" in message], [])
        curve = cluster.losses(job_id)
        self.assertEqual(sorted(curve), list(range(STEPS)))
        # The same steps on the same devices, before the worker has left.
        self.assertEqual([step for step in range(steps[0]) if curve[step] != undisturbed[step]], [])
        worst = max(abs(curve[step] - undisturbed[step]) / abs(undisturbed[step]) for step in range(STEPS))
        print(f"went on from step {steps[0]}; largest relative difference from the undisturbed curve: {worst:.1e}")
        self.assertLess(worst, 1e-4)
        return steps[0]

    def test_a_job_goes_on_with_the_other_worker_at_the_very_step(self):
        with Cluster() as cluster:
            job = cluster.train(*JOB)
            self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
            undisturbed = cluster.losses(job)
            job = cluster.train(*JOB)
            cluster.wait_for_step(job, 20)
            code, seconds = leave(cluster.workers[1])
            self.assertEqual(code, 0)
            self.assertLess(seconds, 10)
            step = self.check(cluster, job, r"worker w\d+ \(w1\) is about to leave: goes on from step (\d+) without it",
                              undisturbed)
            self.assertGreaterEqual(step, 20)
            self.assertIn("nothing uses this worker any more", read(cluster.logs[2]))
            # One that nothing uses leaves at once.
            code, seconds = leave(cluster.workers[0])
            self.assertEqual(code, 0)
            self.assertLess(seconds, 3)

    def test_the_only_worker_hands_over_to_one_that_comes_later(self):
        with Cluster(workers=1) as cluster:
            job = cluster.train(*JOB)
            cluster.wait_for_step(job, 20)
            self.assertEqual(leave(cluster.workers[0])[0], 0)
            state = cluster.job(job)[0]
            self.assertEqual(state["state"].upper(), "RECOVERING")
            self.assertGreaterEqual(int(state["checkpoint_step"]), 20)
            self.assertEqual([worker["state"].upper() for worker in cluster.run("status")["workers"]], ["LEFT"])
            self.assertIn("1 worker has left in order in the last 10 minutes", cluster.cli("status").stdout)
            cluster.start_worker()
            job = cluster.wait_for_job(job)
            self.assertEqual((job["state"].upper(), int(job["attempts"])), ("SUCCEEDED", 2), job)
            _, _, messages = cluster.job(job["id"])
            self.assertIn(f"goes on from step {state['checkpoint_step']} once there are other workers", " ".join(messages))
            self.assertEqual(sorted(cluster.losses(job["id"])), list(range(STEPS)))

    def test_models_move_and_who_is_told_again_leaves_at_once(self):
        with Cluster(workers=1, worker_flags=["--drain-timeout=60"]) as cluster:
            train(cluster, "small", 32, 1, 5)
            cluster.run("serve", "small", "--tensor-parallel=1", "--max-sequence-length=256")
            answers = []

            def ask(tokens):
                body = json.dumps({"model": "small", "prompt": "And", "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
                answers.append(cluster.request("POST", "/v1/completions", body))

            def workers():
                return {worker["name"]: worker for worker in cluster.run("status")["workers"] if worker["state"].upper() not in ("DEAD", "LEFT")}
            ask(100)
            # There is no other worker: the model stays, and is used.
            leaving = cluster.workers[0]
            leaving.send_signal(signal.SIGTERM)
            cluster.wait(lambda: workers()["w0"]["state"].upper() == "DRAINING", 10, "it is known")
            self.assertIn("leaving", cluster.cli("status").stdout)
            ask(100)
            self.assertIsNone(leaving.poll())
            # There is one: the model moves there, and what runs ends where it began.
            running = threading.Thread(target=ask, args=(200,))
            running.start()
            cluster.start_worker()
            self.assertEqual(leaving.wait(30), 0)
            running.join()
            self.assertEqual(workers()["w1"]["job_id"], "serving/small")
            ask(100)
            self.assertEqual([status for status, _ in answers], [200] * 4, answers)
            texts = [json.loads(text)["choices"][0]["text"] for _, text in answers]
            self.assertEqual((texts[1], texts[3], texts[2][:len(texts[0])]), (texts[0],) * 3)

            leaving = cluster.workers[1]
            leaving.send_signal(signal.SIGTERM)
            cluster.wait(lambda: workers()["w1"]["state"].upper() == "DRAINING", 10, "it is known")
            code, seconds = leave(leaving)
            self.assertEqual(code, 0)
            self.assertLess(seconds, 5)
            status, text = cluster.request("POST", "/v1/completions", json.dumps({"model": "small", "prompt": "And"}))
            self.assertEqual(status, 503, text)

            # Ctrl-C asks for no more than to leave.
            leaving = cluster.start_worker()
            cluster.wait(lambda: workers().get("w2", {}).get("job_id") == "serving/small", 60, "the model is there")
            code, seconds = leave(leaving, by=signal.SIGINT)
            self.assertEqual(code, 0)
            self.assertLess(seconds, 5)

    def test_it_waits_for_a_silent_coordinator_no_longer_than_its_lease(self):
        with Cluster(workers=1, lease=2) as cluster:
            job = cluster.train(*JOB)
            cluster.wait_for_step(job, 10)
            cluster.daemon.send_signal(signal.SIGSTOP)
            try:
                code, seconds = leave(cluster.workers[0], 30)
            finally:
                cluster.daemon.send_signal(signal.SIGCONT)
            self.assertEqual(code, 0)
            self.assertLess(seconds, 12)
            self.assertIn("the coordinator does not answer", read(cluster.logs[1]))


if __name__ == "__main__":
    unittest.main()
