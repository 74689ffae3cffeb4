"""Trains an LLM and an SSM and serves them over HTTP and gRPC: streaming, errors, cancellation, metrics, restart."""

import concurrent.futures
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dashboards  # noqa: E402
from cluster import Cluster, Failed  # noqa: E402
from language_models import train  # noqa: E402

PROMTOOL = "/usr/bin/promtool"
# All of /metrics after some requests, without "espalier_".
METRICS = {
    "gauge": "jobs jobs_checkpoints_paused spool_pending_checkpoints data_folder_present workers models num_requests_running num_requests_waiting num_requests_waiting_by_reason"
    " kv_cache_usage_ratio kv_cache_bytes cache_config_info spec_decode_ssm_active"
    " spec_decode_ssm_kv_cache_usage_ratio",
    "counter": "grpc_requests_total job_steps_total job_batches_pushed_total checkpoints_total job_attempts_total workers_lost_total"
    " checkpoints_skipped_total checkpoints_damaged_total spooled_checkpoints_total spooled_bytes_total spool_errors_total store_errors_total prompt_tokens_total"
    " prompt_tokens_cached_total prompt_tokens_by_source_total"
    " prompt_tokens_computed_total generation_tokens_total engine_steps_total num_preemptions_total"
    " spec_decode_num_drafts_total spec_decode_num_draft_tokens_total"
    " spec_decode_num_accepted_tokens_total spec_decode_num_draft_tokens_per_pos_total"
    " spec_decode_num_accepted_tokens_per_pos_total spec_decode_num_ngram_draft_tokens_total"
    " spec_decode_num_ngram_accepted_tokens_total spec_decode_num_tuned_off_steps_total"
    " prefix_cache_queries_total prefix_cache_hits_total request_success_total http_requests_total",
    "histogram": "grpc_request_duration_seconds job_step_duration_seconds job_validation_duration_seconds iteration_tokens"
    " kv_block_lifetime_seconds kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds"
    " time_to_first_token_seconds e2e_request_latency_seconds inter_token_latency_seconds"
    " request_time_per_output_token_seconds request_queue_time_seconds request_inference_time_seconds"
    " request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens"
    " request_generation_tokens request_params_max_tokens request_params_n"
    " request_max_num_generation_tokens request_prefill_kv_computed_tokens"
    " http_request_duration_seconds",
}
# Those that need what no test here does: adapters, a full queue.
APPEARING = {"espalier_lora_requests_info", "espalier_admission_rejections_total"}


class ServingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        try:
            train(cls.cluster, "big", 64, 2, 120)
            train(cls.cluster, "small", 32, 1, 120)
            cls.cluster.run("serve", "big", "--ssm=small", "--expansion=1,1,3,1,1")
        except BaseException:
            cls.cluster.__exit__(True)
            raise

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def complete(self, **fields):
        body = {"model": "big", "prompt": "And God said", "max_tokens": 60, "temperature": 0, **fields}
        status, text = self.cluster.request("POST", "/v1/completions", json.dumps(body))
        return status, json.loads(text)

    def test_trees_and_incremental_decoding_agree(self):
        for prompt in ("In the beginning", "And Abraham", "Ge9:", "x", "the LORD said unto"):
            with_trees = self.complete(prompt=prompt)[1]
            without = self.complete(prompt=prompt, speculation=False)[1]
            self.assertEqual(with_trees["choices"][0]["text"], without["choices"][0]["text"])
            self.assertEqual(without["usage"]["speculation"]["drafted_tokens"], 0)
            steps = with_trees["usage"]["speculation"]["verification_steps"]
            self.assertLess(steps, without["usage"]["speculation"]["verification_steps"])
            self.assertEqual(with_trees["usage"]["completion_tokens"], 60)

    def stream(self, path, body):
        connection = http.client.HTTPConnection(self.cluster.http, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)
        self.assertEqual(reply.getheader("Content-Type"), "text/event-stream")
        events = [line[6:] for line in reply.read().decode().split("\n") if line.startswith("data: ")]
        connection.close()
        self.assertEqual(events[-1], "[DONE]")
        return [json.loads(e) for e in events[:-1]]

    def test_streamed_parts_concatenate_to_the_output(self):
        body = {"model": "big", "prompt": "And God said", "max_tokens": 60, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        events = self.stream("/v1/completions", body)
        text = "".join(e["choices"][0]["text"] for e in events if e["choices"])
        self.assertEqual(text, self.complete()[1]["choices"][0]["text"])
        self.assertGreater(len(events), 5)
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 60)

    def test_chat(self):
        body = {"model": "big", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 20, "temperature": 0}
        status, text = self.cluster.request("POST", "/v1/chat/completions", json.dumps(body))
        self.assertEqual(status, 200)
        message = json.loads(text)["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        events = self.stream("/v1/chat/completions", {**body, "stream": True})
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        streamed = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
        self.assertEqual(streamed, message["content"])

    def test_seeds_make_sampling_repeatable_and_different(self):
        answers = [self.complete(temperature=1.0, seed=seed)[1]["choices"][0]["text"] for seed in (1, 1, 2)]
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], answers[2])

    def test_stop_strings_end_the_output(self):
        whole = self.complete()[1]["choices"][0]["text"]
        stop = whole[10:13]
        cut = self.complete(stop=[stop])[1]["choices"][0]
        self.assertEqual(cut["text"], whole[: whole.index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")

    def test_errors_have_openai_format(self):
        for fields, status, word in [
            ({"model": "nobody"}, 404, "nobody"),
            ({"max_tokens": -1}, 400, "max_tokens"),
            ({"prompt": ""}, 400, "prompt"),
            ({"prompt": "x" * 1000}, 400, "256"),
            ({"prompt": [1, 300]}, 400, "300"),
            ({"top_p": 2}, 400, "top_p"),
            ({"stop": [""]}, 400, "stop"),
            ({"prompt": [1] * 1000000}, 400, "256"),
            ({"top_k": -2}, 400, "top_k"),
            ({"top_k": 1 << 40}, 400, "top_k"),
            ({"seed": 1 << 63}, 400, "seed"),
        ]:
            code, answer = self.complete(**fields)
            self.assertEqual(code, status, answer)
            self.assertIn(word, answer["error"]["message"])
        for method, path, body, status in [
            ("POST", "/v1/completions", "{", 400),
            ("POST", "/v1/completions", "[" * 100000, 400),
            ("GET", "/v1/completions", None, 405),
            ("GET", "/../etc/passwd", None, 404),
            ("POST", "/v1/completions", "x" * (9 << 20), 413),
        ]:
            try:
                code, text = self.cluster.request(method, path, body)
            except OSError:
                self.assertEqual(status, 413)  # the server may close before the whole of such a body is sent
                continue
            self.assertEqual(code, status, text)
            self.assertIn("error", json.loads(text))
        self.assertEqual(self.cluster.get("/health")[0], 200)

    def test_client_disconnect_cancels_its_request(self):
        # Its answers are so long that they are not over before the client is gone.
        train(self.cluster, "long", 64, 2, 1, positions=8192)
        self.cluster.run("serve", "long", "--max-requests-per-batch=2")
        self.addCleanup(self.cluster.run, "unserve", "long")
        connection = http.client.HTTPConnection(self.cluster.http, timeout=60)
        body = {"model": "long", "prompt": "And", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        connection.getresponse().read(50)
        connection.close()

        def value(name, label):
            lines = self.cluster.get("/metrics")[1].splitlines()
            return sum(float(x.split()[-1]) for x in lines if x.startswith(f"espalier_{name}{{") and label in x and 'model_name="long"' in x)

        self.cluster.wait(lambda: value("request_success_total", 'finished_reason="cancelled"') == 1, 20, "it is cancelled")
        self.cluster.wait(lambda: value("num_requests_running", "") == 0, 20, "the request is gone")

    def test_kv_cache_preemption_is_exact(self):
        self.cluster.run("serve", "big", "--name=tight", "--ssm=small", "--expansion=1,1,3,1,1", "--kv-cache-tokens=300")
        asked = [
            {"prompt": p, "temperature": t, "seed": 5, "max_tokens": 90, "ignore_eos": True}
            for p in ("In the beginning", "And Abraham", "Ge9:", "the LORD said unto")
            for t in (0, 1)
        ]
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as threads:
            tight = list(threads.map(lambda fields: self.complete(model="tight", **fields), asked))
        for fields, (status, answer) in zip(asked, tight):
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["text"], self.complete(**fields)[1]["choices"][0]["text"], fields)
        preempted = [x for x in self.cluster.get("/metrics")[1].splitlines() if x.startswith("espalier_num_preemptions_total") and "tight" in x]
        self.assertGreater(float(preempted[0].split()[-1]), 0)
        self.cluster.run("unserve", "tight")
        with self.assertRaises(Failed) as caught:
            self.cluster.run("serve", "big", "--name=tight", "--kv-cache-tokens=200", "--max-sequence-length=256")
        self.assertIn("kv_cache_tokens is 200", caught.exception.err)

    def test_half_closed_client_is_answered(self):
        """Its request is complete (RFC 9112, 9.6); the last answer takes longer than the server waits before it probes."""
        host, port = self.cluster.http.rsplit(":", 1)
        long = json.dumps({"model": "big", "prompt": "And", "max_tokens": 180, "ignore_eos": True, "n": 16}).encode()
        for line, body in (("GET /version", b""), ("GET /v1/models", b""), ("POST /v1/completions", long)):
            with socket.create_connection((host, int(port)), timeout=60) as client:
                client.sendall(f"{line} HTTP/1.1\r\nHost: {self.cluster.http}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                client.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
            while answer.startswith(b"HTTP/1.1 100 "):
                answer = answer.split(b"\r\n\r\n", 1)[1]
            self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK\r\n"), (line, answer[:200]))
            self.assertIn(b'"', answer.split(b"\r\n\r\n", 1)[1])

    def test_models_and_version(self):
        models = json.loads(self.cluster.get("/v1/models")[1])["data"]
        self.assertEqual([m["id"] for m in models], ["big"])
        self.assertIn("version", json.loads(self.cluster.get("/version")[1]))

    def metrics(self):
        """Types by name, and values by name of the sample: sums over all its series."""
        types, values = {}, {}
        for line in self.cluster.get("/metrics")[1].splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                types[name] = kind
            elif not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.split("{")[0]
                values[name] = values.get(name, 0) + float(value)
        return types, values

    def test_metrics_names_and_types(self):
        self.complete()
        body = {"model": "big", "input": "And"}
        self.assertEqual(self.cluster.request("POST", "/v1/embeddings", json.dumps(body))[0], 200)
        linted = subprocess.run([PROMTOOL, "check", "metrics"], input=self.cluster.get("/metrics")[1], capture_output=True, text=True, timeout=60)
        self.assertEqual((linted.returncode, linted.stdout + linted.stderr), (0, ""))
        want = {}
        for kind, names in METRICS.items():
            want.update({f"espalier_{name}": kind for name in names.split()})
        want["process_start_time_seconds"] = "gauge"
        types, values = self.metrics()
        self.assertEqual({name: kind for name, kind in types.items() if name not in APPEARING}, want)
        for name, kind in types.items():
            if kind == "counter":
                self.assertTrue(name.endswith("_total"), name)
            if kind == "histogram":
                for end in ("_bucket", "_sum", "_count"):
                    self.assertIn(name + end, values)

    def test_dashboards_use_existing_metrics_and_labels(self):
        self.complete()
        labels = {}
        for line in self.cluster.get("/metrics")[1].splitlines():
            if not line.startswith("#"):
                name, _, rest = line.rpartition(" ")[0].partition("{")
                labels.setdefault(name, set()).update(re.findall(r'(\w+)="', rest))
        asked = set()
        for dashboard in dashboards.load().values():
            for title, expression in dashboards.expressions_of(dashboard):
                names, wanted = dashboards.asked_for(expression)
                asked |= names
                for name in names:
                    self.assertIn(name, labels, title)
                    # A label by which one side of a division is split further is on that side alone.
                    self.assertTrue(wanted <= labels[name] or "group_left" in expression, f"{title}: {name} has {labels[name]}, asked for by {wanted}")
        self.assertGreater(len(asked), 30)

    def test_metrics_add_up(self):
        def idle():
            values = self.metrics()[1]
            return values["espalier_num_requests_running"] == 0 and values["espalier_num_requests_waiting"] == 0

        self.cluster.wait(idle, 20, "what other tests asked is over")
        before = self.metrics()[1]
        prompt, other = [250] * 40, [251] * 40  # two blocks and a half, as no other test begins
        usages = [
            self.complete(prompt=p, **fields)[1]["usage"]
            for p, fields in ((prompt, {}), (prompt, {"max_tokens": 5}), (other, {"n": 3, "max_tokens": 10, "ignore_eos": True}))
        ]
        self.assertEqual([u["completion_tokens"] for u in usages][1:], [5, 30])
        body = {"model": "big", "input": [[252] * 33, [253] * 20]}
        self.assertEqual(self.cluster.request("POST", "/v1/embeddings", json.dumps(body))[0], 200)
        tokens = sum(u["completion_tokens"] for u in usages)
        prompts = 40 + 40 + 3 * 40 + 33 + 20  # each answer has its prompt

        def growth():
            return {name[len("espalier_") :]: value - before.get(name, 0) for name, value in self.metrics()[1].items() if name.startswith("espalier_")}

        # An engine's statistics are taken over after its events.
        self.cluster.wait(lambda: growth()["prompt_tokens_total"] >= prompts and idle(), 20, f"{prompts} are counted")
        grown = growth()
        cached = grown["prompt_tokens_cached_total"]
        self.assertIn(cached, (39, 78, 117))  # the second request's; and, of three at once, those that came later
        for name, value in (
            ("prompt_tokens_total", prompts),
            ("prompt_tokens_by_source_total", prompts),
            ("prompt_tokens_computed_total", prompts - cached),
            ("prefix_cache_hits_total", cached),
            ("prefix_cache_queries_total", prompts),
            ("generation_tokens_total", tokens),
            ("iteration_tokens_sum", prompts - cached + tokens),
            ("iteration_tokens_count", grown["engine_steps_total"]),
            ("request_success_total", 5 + 2),
            ("request_generation_tokens_sum", tokens),
            ("request_generation_tokens_count", 5),
            ("request_prompt_tokens_sum", prompts),
            ("request_prompt_tokens_count", 7),
            ("request_prefill_kv_computed_tokens_sum", prompts - cached),
            ("time_to_first_token_seconds_count", 5),
            ("e2e_request_latency_seconds_count", 7),
            ("request_queue_time_seconds_count", 7),
            ("request_inference_time_seconds_count", 7),
            ("request_prefill_time_seconds_count", 7),
            ("request_decode_time_seconds_count", 5),
            ("request_time_per_output_token_seconds_count", 5),
            ("request_params_n_count", 3),
            ("request_params_n_sum", 5),
            ("request_params_max_tokens_sum", 60 + 5 + 3 * 10),
            ("request_max_num_generation_tokens_sum", usages[0]["completion_tokens"] + 5 + 10),
            ("spec_decode_num_draft_tokens_total", sum(u["speculation"]["drafted_tokens"] for u in usages)),
            ("spec_decode_num_accepted_tokens_total", sum(u["speculation"]["accepted_tokens"] for u in usages)),
            ("spec_decode_num_draft_tokens_per_pos_total", grown["spec_decode_num_draft_tokens_total"]),
            ("spec_decode_num_accepted_tokens_per_pos_total", grown["spec_decode_num_accepted_tokens_total"]),
            ("kv_block_reuse_gap_seconds_count", cached / 13),
        ):
            self.assertAlmostEqual(grown[name], value, msg=name)
        # Waiting, the prompt and the answer are the whole of a request.
        parts = [grown[f"request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode")]
        whole = grown["e2e_request_latency_seconds_sum"]
        self.assertAlmostEqual(grown["request_queue_time_seconds_sum"] + grown["request_inference_time_seconds_sum"], whole, delta=1e-6)
        # An embedding ends a moment after its prompt.
        self.assertAlmostEqual(sum(parts), whole, delta=0.02)

    def test_cli_compares_speculation_over_grpc(self):
        out = self.cluster.run("generate", "big", "And God said", "--max-tokens=40", "--compare")
        self.assertTrue(out["identical"], out)

    def test_unserve_and_clean_shutdown(self):
        with Cluster(workers=1, daemon_flags=["--serving-memory=20000000"]) as cluster:
            train(cluster, "only", 16, 1, 3)
            # A KV cache as large as fits, unless somebody says how large.
            wide = cluster.run("serve", "only", "--name=wide", "--max-requests-per-batch=4096")
            self.assertLess(wide["kv_cache_tokens"], 4096 * wide["max_sequence_length"])
            self.assertGreaterEqual(wide["kv_cache_tokens"], wide["max_sequence_length"])
            body = json.dumps({"model": "wide", "prompt": "And", "max_tokens": 5})
            self.assertEqual(cluster.request("POST", "/v1/completions", body)[0], 200)
            cluster.run("unserve", "wide")
            with self.assertRaises(Failed) as caught:
                cluster.run("serve", "only", "--max-requests-per-batch=4096", "--kv-cache-tokens=1000000")
            self.assertIn("kv_cache_tokens or max_sequence_length make it smaller", caught.exception.err)
            # Models in one process share its memory.
            # (64 bytes for a token: keys and values of two heads of four.)
            half = ["serve", "only", "--max-requests-per-batch=1024", f"--kv-cache-tokens={11000000 // 64}"]
            cluster.run(*half, "--name=half")
            with self.assertRaises(Failed) as caught:
                cluster.run(*half, "--name=other")
            self.assertIn("which the models in this process share (--serving-memory)", caught.exception.err)
            cluster.run("unserve", "half")
            cluster.run("serve", "only", "--name=once")
            cluster.run("serve", "only", "--name=twice")
            cluster.run("unserve", "once")
            names = [m["id"] for m in json.loads(cluster.get("/v1/models")[1])["data"]]
            self.assertEqual(names, ["twice"])
            # What runs comes to its end, so late that all of this is seen before; nothing new begins.
            train(cluster, "long", 32, 1, 1, positions=8192)
            cluster.run("serve", "long", "--max-requests-per-batch=2", "--kv-cache-tokens=8192")
            connection = http.client.HTTPConnection(cluster.http, timeout=60)
            connection.request(
                "POST", "/v1/completions", json.dumps({"model": "long", "prompt": "And", "max_tokens": 8000, "ignore_eos": True, "stream": True})
            )
            reply = connection.getresponse()
            reply.readline()
            cluster.daemon.terminate()
            while cluster.get("/ready")[0] == 200:
                pass
            status, text = cluster.request("POST", "/v1/completions", json.dumps({"model": "twice", "prompt": "x"}))
            self.assertEqual(status, 503, text)
            self.assertTrue(reply.read().decode().rstrip().endswith("[DONE]"))
            self.assertEqual(cluster.daemon.wait(30), 0)

    def test_zz_served_models_are_restored_after_a_crash(self):
        before = self.complete()[1]["choices"][0]["text"]
        self.cluster.kill(self.cluster.daemon)
        self.cluster.start_daemon()
        self.cluster.wait(lambda: self.cluster.get("/v1/models")[1].find('"big"') > 0, 60, "the model is back")
        self.assertEqual(self.complete()[1]["choices"][0]["text"], before)


if __name__ == "__main__":
    unittest.main()
