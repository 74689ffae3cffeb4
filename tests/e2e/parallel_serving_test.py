"""Serving on workers: tensor and pipeline parallelism, SSMs on workers, automatic placement, speculation, worker death and
coordinator restart."""
import http.client
import json
import os
import re
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402
from language_models import train  # noqa: E402

PROMPTS = ("In the beginning", "And Abraham", "Ge9:", "x", "the LORD said unto")
DRAFTS = ("--ssm=small", "--expansion=1,1,3,1,1")


class ParallelServingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        try:
            train(cls.cluster, "big", 64, 2, 120)
            train(cls.cluster, "small", 32, 1, 120)
            cls.cluster.run("serve", "big", "--name=local", *DRAFTS)
        except BaseException:
            cls.cluster.__exit__(True)
            raise

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def tearDown(self):
        for model in self.cluster.run("serve")["models"]:
            if model["name"] != "local":
                self.cluster.run("unserve", model["name"])

    def ask(self, model, prompt="And God said", **fields):
        body = {"model": model, "prompt": prompt, "max_tokens": 60, "temperature": 0, **fields}
        status, text = self.cluster.request("POST", "/v1/completions", json.dumps(body))
        return status, json.loads(text)

    def answer(self, model, prompt, **fields):
        status, reply = self.ask(model, prompt, **fields)
        self.assertEqual(status, 200, reply)
        return reply["choices"][0]["text"], reply["usage"]["speculation"]

    def workers(self):
        return {w["worker_id"]: w for w in self.cluster.run("status")["workers"] if w["state"].upper() not in ("DEAD", "LEFT")}

    def served(self, name):
        return next(m for m in self.cluster.run("serve")["models"] if m["name"] == name)

    def memory(self):
        """Kilobytes of all workers."""
        total = 0
        for process in self.cluster.workers:
            if process.poll() is not None:
                continue
            with open(f"/proc/{process.pid}/status") as status:
                total += next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return total

    def check_answers(self, name, like="local"):
        for prompt in PROMPTS:
            text, speculation = self.answer(name, prompt)
            self.assertEqual(text, self.answer(like, prompt)[0])
            self.assertGreater(speculation["accepted_tokens"], 0)
            self.assertEqual(text, self.answer(name, prompt, speculation=False)[0])

    def test_outputs_match_the_coordinator_process(self):
        for flags in (["--tensor-parallel=1"], ["--tensor-parallel=2"], ["--pipeline-parallel=2"],
                      ["--tensor-parallel=2", "--weights=bf16"]):
            with self.subTest(flags):
                served = self.cluster.run("serve", "big", "--name=far", *DRAFTS, *flags)
                self.assertEqual(len(served["workers"]), 2 if "2" in flags[0] else 1)
                if len(flags) == 1:
                    self.check_answers("far")
                else:
                    self.cluster.run("serve", "big", "--name=near", flags[1])
                    self.check_answers("far", like="near")
                self.cluster.run("unserve", "far")

    def test_workers_are_busy_while_serving_and_idle_afterwards(self):
        served = self.cluster.run("serve", "big", "--name=far", "--tensor-parallel=2")
        self.assertEqual(self.served("far")["state"], "ready")
        workers = self.workers()
        self.assertEqual([workers[w]["job_id"] for w in served["workers"]], ["serving/far"] * 2)
        self.assertEqual({w["state"].upper() for w in workers.values()}, {"BUSY"})
        self.answer("far", "x")
        with self.assertRaises(Failed) as failed:
            self.cluster.run("serve", "big", "--name=more", "--tensor-parallel=1")
        self.assertIn("needs 1 idle workers", failed.exception.err)
        self.assertIn("works for serving/far", failed.exception.err)
        self.cluster.run("unserve", "far")
        self.assertEqual({w["state"].upper() for w in self.workers().values()}, {"IDLE"})

    def embed(self, model):
        status, text = self.cluster.request("POST", "/v1/embeddings", json.dumps({"model": model, "input": list(PROMPTS)}))
        self.assertEqual(status, 200, text)
        return [item["embedding"] for item in json.loads(text)["data"]]

    def at_once(self, model, questions):
        """The answers to all of them, asked at the same time."""
        replies = [None] * len(questions)

        def ask(i):
            prompt, fields = questions[i]
            replies[i] = self.ask(model, prompt, **fields)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(questions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            self.assertFalse(thread.is_alive(), "an answer hangs")
        return replies

    def test_verify_lossless_runs_on_workers(self):
        for flags in (["--tensor-parallel=1", *DRAFTS, "--ssm-tensor-parallel=1"],
                      ["--tensor-parallel=1", "--ssm=small", "--weights=int8"],
                      ["--tensor-parallel=2", *DRAFTS],
                      ["--pipeline-parallel=2", *DRAFTS]):  # two steps at once
            report = self.cluster.run("verify-lossless", "--llm=big", "--draws=1000", *flags)
            self.assertTrue(report["passed"], report)
            self.assertEqual(len(report["checks"]), 6, report)

    def test_worker_side_sampling_matches(self):
        """A worker puts logits through masks, biases and penalties, and says how probable tokens were."""
        fields = [
            {"logprobs": 3},
            {"echo": True, "logprobs": 2, "prompt_logprobs": 1},
            {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 1},
            {"temperature": 0.8, "seed": 3, "frequency_penalty": 0.7, "logit_bias": {"32": 4, "101": -100}},
            {"guided_regex": "[a-f ]{8,20}", "logprobs": 2},
            {"guided_regex": "(And|Now) [a-z ]{4,12}\\.", "temperature": 1, "seed": 5},
            {"allowed_token_ids": [32, 97, 98, 101], "bad_words": ["a a"], "min_tokens": 5, "stop": ["e"]},
        ]
        questions = [(prompt, more) for prompt in PROMPTS for more in fields]
        replies = {}
        for name, flags in (("here", []), ("far", ["--tensor-parallel=1"]), ("split", ["--tensor-parallel=2"])):
            self.cluster.run("serve", "big", f"--name={name}", *DRAFTS, *flags)
            replies[name] = self.at_once(name, questions)
            self.assertEqual([status for status, _ in replies[name]], [200] * len(questions), replies[name])
            self.cluster.run("unserve", name)
        for i, question in enumerate(questions):
            expected = replies["here"][i][1]["choices"][0]
            self.assertEqual(replies["far"][i][1]["choices"][0], expected, question)
            # Halves are added in another order.
            self.assertEqual(replies["split"][i][1]["choices"][0]["text"], expected["text"], question)
        self.assertRegex(replies["far"][4][1]["choices"][0]["text"], "^[a-f ]{8,20}$")

    def test_pipeline_stages_run_concurrent_steps(self):
        with open(os.path.join(DATA, "genesis.txt")) as text:
            long = text.read(190)
        questions = [(prompt, {}) for prompt in (*PROMPTS, long)]
        questions += [(prompt, {"temperature": 0.9, "seed": 7 + i}) for i, prompt in enumerate(PROMPTS)]
        self.cluster.run("serve", "big", "--name=here", *DRAFTS, "--max-tokens-per-batch=64")
        expected = [reply["choices"][0]["text"] for _, reply in self.at_once("here", questions)]
        for flags, steps in (([], 2), (["--concurrent-steps=1"], 1)):
            served = self.cluster.run("serve", "big", "--name=far", *DRAFTS, "--pipeline-parallel=2",
                                      "--max-tokens-per-batch=64", *flags)
            self.assertEqual(served["concurrent_steps"], steps)
            connection, reply = self.stream("far", 200)
            reply.readline()
            answers = self.at_once("far", questions[:6])
            connection.close()  # in the middle of a step of its own, or of others
            answers += self.at_once("far", questions[6:])
            self.assertEqual([status for status, _ in answers], [200] * len(questions), answers)
            self.assertEqual([reply["choices"][0]["text"] for _, reply in answers], expected)
            if steps == 2:
                killer = threading.Timer(0.3, lambda: self.cluster.kill(
                    next(p for p in self.cluster.workers if p.poll() is None)))
                killer.start()
                more = {"max_tokens": 200, "ignore_eos": True}
                statuses = [status for status, _ in self.at_once("far", [(p, more) for p in PROMPTS * 16])]
                killer.join()
                print(f"answers after the loss of a worker: {sorted(statuses)}")
                self.assertLessEqual(set(statuses), {200, 503})
                self.assertIn(503, statuses)
                self.cluster.start_worker()
                self.cluster.wait(lambda: self.served("far")["state"] == "ready", 60, "the model is back")
                self.assertEqual(self.answer("far", long)[0], expected[len(PROMPTS)])
            self.cluster.run("unserve", "far")
        tuned = ["--ssm=small", "--tune"]
        for flags in (tuned, [*DRAFTS, "--ssm-tensor-parallel=1"]):
            served = self.cluster.run("serve", "big", "--name=far", "--pipeline-parallel=2", *flags)
            self.assertEqual(served["concurrent_steps"], 1, flags)
            self.cluster.run("unserve", "far")
        for flags, what in ((tuned, "tune_speculation"),
                            ([*DRAFTS, "--ssm-tensor-parallel=1"], "small models on workers"),
                            ([*DRAFTS, "--concurrent-steps=3"], "the model has 2 stages")):
            with self.assertRaises(Failed) as failed:
                self.cluster.run("serve", "big", "--name=far", "--pipeline-parallel=2", "--concurrent-steps=2", *flags)
            self.assertIn(what, failed.exception.err)
        with self.assertRaises(Failed) as failed:
            self.cluster.run("serve", "big", "--name=far", "--tensor-parallel=2", "--concurrent-steps=2")
        self.assertIn("the model has 1 stage", failed.exception.err)

    def test_embeddings_and_kv_formats_match_the_coordinator(self):
        def kv_bytes(model):
            text = self.cluster.get("/metrics")[1]
            return float(re.search(rf'espalier_kv_cache_bytes{{model_name="{model}"}} (\S+)', text)[1])
        vectors = self.embed("local")
        for flags, kv in ((["--tensor-parallel=2"], "f32"), (["--pipeline-parallel=2"], "f16"),
                          (["--pipeline-parallel=2"], "int8"), (["--tensor-parallel=2"], "bf16")):
            with self.subTest(kv_cache=kv, flags=flags):
                self.cluster.run("serve", "big", "--name=near", "--kv-cache=" + kv)
                self.cluster.run("serve", "big", "--name=far", "--kv-cache=" + kv, *flags)
                self.assertTrue(self.served("far")["embeddings"])
                self.assertEqual(self.served("far")["kv_cache"], kv)
                self.assertEqual(kv_bytes("far"), kv_bytes("near"))
                near, far = self.embed("near"), self.embed("far")
                # Stages change no sum; cut sums may be kept as the next number of the format.
                limit = {"f32": 1e-5, "bf16": 2e-2}.get(kv, 0)
                for a, b in zip(near, far):
                    self.assertLessEqual(max(abs(x - y) for x, y in zip(a, b)), limit)
                if kv != "f32":
                    self.assertNotEqual(near, vectors)
                if limit == 0:
                    for prompt in PROMPTS:
                        self.assertEqual(self.answer("far", prompt)[0], self.answer("near", prompt)[0])
                self.cluster.run("unserve", "far")
                self.cluster.run("unserve", "near")

    def test_ssm_on_a_worker_is_lost_and_restored(self):
        served = self.cluster.run("serve", "big", "--name=far", *DRAFTS, "--ssm-tensor-parallel=1")
        place = served["ssm_placements"][0]
        self.assertEqual((place["state"], len(place["workers"])), ("ready", 1), served)
        self.assertEqual(self.workers()[place["workers"][0]]["job_id"], "serving/far/ssm0")
        self.check_answers("far")
        self.cluster.run("unserve", "far")
        self.assertEqual({w["state"].upper() for w in self.workers().values()}, {"IDLE"})
        # Both on workers, of which the small model's dies: nobody's answer ends for that, and it moves in with the large
        # one.
        served = self.cluster.run("serve", "big", "--name=far", *DRAFTS, "--tensor-parallel=1",
                                  "--ssm-tensor-parallel=1")
        self.assertNotEqual(served["ssm_placements"][0]["workers"], served["workers"])
        lost = self.workers()[served["ssm_placements"][0]["workers"][0]]
        expected = self.answer("local", "And Abraham")[0]
        self.check_answers("far")
        self.cluster.kill(self.cluster.workers[int(lost["name"][1:])])
        self.assertEqual(self.answer("far", "And Abraham")[0], expected)
        self.cluster.wait(lambda: self.served("far")["ssm_placements"][0].get("workers") == served["workers"], 60,
                          "it is on the other worker")
        self.assertEqual(self.served("far")["state"], "ready")
        self.check_answers("far")
        self.cluster.start_worker()
        self.cluster.wait_for_workers(2)
        with self.assertRaises(Failed) as failed:
            self.cluster.run("serve", "big", "--name=other", "--ssm-tensor-parallel=1")
        self.assertIn("'ssm_artifacts' names none", failed.exception.err)

    def test_models_that_share_a_worker_are_restored_together(self):
        served = self.cluster.run("serve", "big", "--name=far", *DRAFTS, "--tensor-parallel=2", "--ssm-tensor-parallel=1")
        shared = served["ssm_placements"][0]["workers"]
        self.assertEqual((len(served["workers"]), len(shared)), (2, 1))
        self.assertIn(shared[0], served["workers"])
        workers = self.workers()
        self.assertEqual(workers[shared[0]]["job_id"], "serving/far, serving/far/ssm0")
        self.check_answers("far")
        # Another model gets none of them.
        with self.assertRaises(Failed) as failed:
            self.cluster.run("serve", "big", "--name=more", "--tensor-parallel=1")
        self.assertIn("works for serving/far", failed.exception.err)
        expected = self.answer("local", "And Abraham")[0]
        self.cluster.kill(self.cluster.workers[int(workers[shared[0]]["name"][1:])])
        self.cluster.wait(lambda: self.served("far")["state"] != "ready", 20, "the loss is seen")
        self.assertEqual(self.ask("far", "And Abraham")[0], 503)
        self.cluster.start_worker()
        for place in (lambda: self.served("far"), lambda: self.served("far")["ssm_placements"][0]):
            self.cluster.wait(lambda: place()["state"] == "ready", 60, "it is back")
        self.check_answers("far")
        self.assertEqual(self.answer("far", "And Abraham")[0], expected)
        self.cluster.run("unserve", "far")
        self.assertEqual({w["state"].upper() for w in self.workers().values()}, {"IDLE"})

    def test_weight_streaming_on_workers_is_exact(self):
        for flags in (["--tensor-parallel=1"], ["--tensor-parallel=2"], ["--pipeline-parallel=2"], ["--workers=auto"]):
            with self.subTest(flags):
                with self.assertRaises(Failed) as failed:
                    self.cluster.run("serve", "big", "--name=far", *flags, "--resident-weights=64")
                least = re.search(r"a double buffer, take (\d+)", failed.exception.err)
                self.assertIsNotNone(least, failed.exception.err)
                served = self.cluster.run("serve", "big", "--name=far", *DRAFTS, *flags, "--resident-weights=" + least[1])
                self.assertEqual(int(served["resident_weight_bytes"]), int(least[1]))
                self.check_answers("far")
                self.cluster.run("unserve", "far")

    def test_automatic_placement_of_llm_and_ssm(self):
        served = self.cluster.run("serve", "big", "--name=far", *DRAFTS, "--workers=auto", "--expected-requests=2")
        candidates = served["candidates"]
        chosen = [c for c in candidates if c.get("chosen")]
        self.assertEqual(len(chosen), 1)
        self.assertEqual(chosen[0]["tokens_per_second"], max(c.get("tokens_per_second", 0) for c in candidates))
        self.assertGreater(len({json.dumps([c["llm"], c.get("ssms", [])]) for c in candidates}), 4)
        self.assertEqual(chosen[0]["llm"].get("tensor_parallel", 0), served.get("tensor_parallel", 0))
        self.check_answers("far")
        self.assertEqual(self.cluster.run("serve", "big", "--name=far", *DRAFTS, "--workers=auto",
                                          "--expected-requests=2")["loaded_unix_ms"], served["loaded_unix_ms"])
        table = self.cluster.cli("serve", "big", "--name=again", *DRAFTS, "--workers=auto").stdout
        self.assertIn("placements by predicted tokens per second", table)
        for wrong, what in ((["--workers=auto", "--tensor-parallel=2"], "leave 'tensor_parallel'"),
                            (["--workers=all"], "expected auto")):
            with self.assertRaises(Failed) as failed:
                self.cluster.run("serve", "big", "--name=other", *wrong)
            self.assertIn(what, failed.exception.err)

    def test_memory_does_not_grow_with_every_load(self):
        def once():
            self.cluster.run("serve", "big", "--name=far", "--tensor-parallel=2", "--max-requests-per-batch=256")
            self.answer("far", "x" * 100)
            self.cluster.run("unserve", "far")
            return self.memory()
        once()  # what allocators keep for later
        before = once()
        for _ in range(6):
            after = once()
        print(f"two workers' memory: {before} kB, after six more loads {after} kB")
        self.assertLess(after, before + 10_000)

    def test_kv_cache_is_sized_to_the_worker(self):
        with Cluster(workers=1) as cluster:
            train(cluster, "only", 16, 1, 3)
            cluster.workers[0].terminate()
            cluster.workers[0].wait()
            cluster.worker_flags.append("--memory-limit=20000000")
            cluster.start_worker()
            cluster.wait_for_workers(1)
            far = ["serve", "only", "--tensor-parallel=1", "--max-requests-per-batch=4096"]
            wide = cluster.run(*far, "--name=wide")
            self.assertLess(wide["kv_cache_tokens"], 4096 * wide["max_sequence_length"])
            self.assertGreaterEqual(wide["kv_cache_tokens"], wide["max_sequence_length"])
            body = json.dumps({"model": "wide", "prompt": "And", "max_tokens": 5})
            self.assertEqual(cluster.request("POST", "/v1/completions", body)[0], 200)
            # The coordinator is back before the worker, and knows no more what it has.
            cluster.kill(cluster.daemon)
            cluster.start_daemon()
            cluster.wait(lambda: cluster.run("serve")["models"][0]["state"] == "ready", 60, "the model is back")
            self.assertEqual(cluster.run("serve")["models"][0]["kv_cache_tokens"], wide["kv_cache_tokens"])
            cluster.run("unserve", "wide")
            with self.assertRaises(Failed) as failed:
                cluster.run(*far, "--kv-cache-tokens=1000000")
            self.assertIn("kv_cache_tokens or max_sequence_length make it smaller", failed.exception.err)

    def test_invalid_parallel_degrees_are_rejected_by_name(self):
        with self.assertRaises(Failed) as failed:
            self.cluster.run("serve", "big", "--name=far", "--tensor-parallel=3")
        self.assertIn("2 key and value heads", failed.exception.err)
        with self.assertRaises(Failed) as failed:
            self.cluster.run("serve", "big", "--name=far", "--pipeline-parallel=3")
        self.assertIn("the model has 2 layers", failed.exception.err)

    def stream(self, model, tokens):
        connection = http.client.HTTPConnection(self.cluster.http, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": model, "prompt": "And", "max_tokens": tokens, "ignore_eos": True, "stream": True,
             "temperature": 0}), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def test_cancelling_a_request_does_not_affect_others(self):
        self.cluster.run("serve", "big", "--name=far", "--tensor-parallel=2", *DRAFTS)
        for _ in range(3):
            connection, reply = self.stream("far", 200)
            reply.readline()
            connection.close()
            text, _ = self.answer("far", "And Abraham")
            self.assertEqual(text, self.answer("local", "And Abraham")[0])

    def test_worker_death_ends_requests_and_model_is_restored(self):
        self.cluster.run("serve", "big", "--name=far", "--tensor-parallel=2", *DRAFTS)
        expected = self.answer("local", "And Abraham")[0]
        self.answer("far", "And Abraham")  # now in the prefix cache
        failures, stop = [], threading.Event()

        def keep_asking():
            while not stop.is_set():
                status, reply = self.ask("far", "And God", max_tokens=200, ignore_eos=True)
                if status != 200:
                    failures.append((status, reply))
                    return

        asking = threading.Thread(target=keep_asking)
        asking.start()
        time.sleep(0.5)
        begin = time.time()
        self.cluster.kill(next(p for p in self.cluster.workers if p.poll() is None))
        asking.join(30)
        stop.set()
        self.assertFalse(asking.is_alive(), "the answer hangs")
        print(f"an answer in the middle ended {time.time() - begin:.2f} s after the kill: {failures}")
        self.assertEqual(failures[0][0], 503, failures)
        self.assertIn("far", failures[0][1]["error"]["message"])
        # One worker is not enough: that is to be seen, and requests end at once.
        self.cluster.wait(lambda: self.served("far").get("workers", []) == [], 20, "the loss is noticed")
        self.assertNotEqual(self.served("far")["state"], "ready")
        status, reply = self.ask("far", "And Abraham")
        self.assertEqual(status, 503, reply)
        self.cluster.start_worker()
        self.cluster.wait(lambda: self.served("far")["state"] == "ready", 60, "the model is back")
        self.assertEqual(self.answer("far", "And Abraham")[0], expected)

    def test_zz_after_a_crash_of_the_coordinator_the_model_waits_for_its_workers(self):
        self.cluster.run("serve", "big", "--name=far", "--pipeline-parallel=2", *DRAFTS, "--ssm-tensor-parallel=1")
        expected = self.answer("far", "And Abraham")[0]
        self.cluster.kill(self.cluster.daemon)
        self.cluster.start_daemon()
        self.cluster.wait(lambda: self.served("far")["state"] == "ready", 60, "the model is back")
        self.cluster.wait(lambda: self.served("far")["ssm_placements"][0]["state"] == "ready", 60, "the small one too")
        self.assertEqual(self.answer("far", "And Abraham")[0], expected)
        self.check_answers("far")


if __name__ == "__main__":
    unittest.main()
