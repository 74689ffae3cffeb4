"""`espalier bench` of a real daemon, over gRPC and HTTP: its metrics are consistent with each other, with the elapsed time
and with the daemon's metrics."""
import csv
import io
import json
import os
import sqlite3
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, Failed  # noqa: E402
from language_models import train  # noqa: E402

TIMES = ("ttft", "tpot", "itl", "e2el")
LANGUAGES = "Привет, мир! 你好，世界。 naïve café — 🙂👍🏽 नमस्ते Ελλάδα "


def mean(values):
    return sum(values) / len(values)


class BenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1)
        try:
            train(cls.cluster, "big", 32, 2, 60)
            train(cls.cluster, "small", 16, 1, 60)
            cls.cluster.run("serve", "big", "--ssm=small", "--expansion=1,2,1")
        except BaseException:
            cls.cluster.__exit__(True)
            raise

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def path(self, name, text):
        path = os.path.join(self.cluster.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def counted(self, *names):
        values = {}
        for line in self.cluster.get("/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if not name.startswith("#"):
                series = name.split("{")[0][len("espalier_"):]
                values[series] = values.get(series, 0) + float(value)
        return [values.get(name, 0) for name in names]

    def check_load(self, done, requests, tokens):
        """Checks invariants of --json --save-detailed output without failures, with `tokens` tokens per output."""
        self.assertEqual((done["num_prompts"], done["completed"], done["failed"]), (requests, requests, 0))
        self.assertEqual(done["errors"], [""] * requests)
        self.assertEqual(done["output_lens"], [tokens] * requests)
        self.assertEqual(done["total_output_tokens"], tokens * requests)
        self.assertEqual(done["total_input_tokens"], sum(done["input_lens"]))
        duration = done["duration"]
        for rate, count in (("request_throughput", requests), ("output_throughput", tokens * requests),
                            ("total_token_throughput", tokens * requests + done["total_input_tokens"])):
            self.assertAlmostEqual(done[rate] * duration, count, delta=1e-6 * count)
        for i in range(requests):
            ttft, gaps, whole = done["ttfts"][i], done["itls"][i], done["e2els"][i]
            self.assertGreater(ttft, 0)
            self.assertLess(len(gaps), tokens)
            # The last piece comes before the end.
            self.assertLessEqual(ttft + sum(gaps), whole + 1e-6)
            self.assertTrue(done["generated_texts"][i])
        each = [(e - t) / (tokens - 1) for e, t in zip(done["e2els"], done["ttfts"])]
        gaps = [gap for gaps in done["itls"] for gap in gaps]
        for name, values in zip(TIMES, (done["ttfts"], each, gaps, done["e2els"])):
            self.assertAlmostEqual(done[f"mean_{name}_ms"], 1000 * mean(values), delta=1e-3, msg=name)
            spread = mean([(v - mean(values)) ** 2 for v in values]) ** 0.5
            self.assertAlmostEqual(done[f"std_{name}_ms"], 1000 * spread, delta=1e-3, msg=name)
            low, high = 1000 * min(values), 1000 * max(values)
            tells = [done[f"{what}_{name}_ms"] for what in ("median", "p90", "p99")]
            self.assertEqual(tells, sorted(tells))
            self.assertGreaterEqual(tells[0], low - 1e-6)
            self.assertLessEqual(tells[2], high + 1e-6)

    def test_load_metrics_are_consistent_and_match_the_daemon(self):
        names = ("generation_tokens_total", "prompt_tokens_total", "prompt_tokens_cached_total",
                 "request_success_total", "time_to_first_token_seconds_count", "request_params_n_count")
        for way in ([], ["--http"]):
            before, start = self.counted(*names), time.time()
            done = self.cluster.run("bench", "big", "--requests=12", "--max-tokens=20", "--max-concurrency=3",
                                    "--save-detailed", *way)
            passed = time.time() - start
            self.check_load(done, 12, 20)
            self.assertEqual(done["endpoint_type"], "openai" if way else "grpc")
            self.assertLessEqual(done["max_concurrent_requests"], 3)
            self.assertLess(done["duration"], passed)
            # Little's law: as many are there as arrive in the time that each takes.
            self.assertLessEqual(sum(done["e2els"]), 3 * done["duration"] + 1e-3)
            self.assertGreaterEqual(sum(done["e2els"]), done["duration"] * 0.8)
            self.assertGreater(done["drafted_tokens"], 0)
            # Statistics are taken over after the last event.
            want = [12 * 20, done["total_input_tokens"], done["cached_input_tokens"], 12, 12, 12]
            self.cluster.wait(lambda: [b - a for a, b in zip(before, self.counted(*names))] == want, 10,
                              f"the daemon has counted {want}")
        self.assertGreaterEqual(done["cached_input_tokens"], 12 * 48)  # of 64 and more, asked a second time

    def test_request_rate_is_kept_and_latency_counts_from_due_time(self):
        flags = ("--requests=20", "--request-rate=40", "--max-tokens=8", "--save-detailed", "--seed=5")
        free = self.cluster.run("bench", "big", *flags)
        self.check_load(free, 20, 8)
        self.assertGreater(free["duration"], 0.1)
        # All are due at once, one goes at a time: no wait is lost from sight.
        bound = self.cluster.run("bench", "big", *flags[:1], "--request-rate=1000000", *flags[2:], "--max-concurrency=1")
        self.check_load(bound, 20, 8)
        self.assertEqual(bound["max_concurrent_requests"], 1)
        self.assertGreater(bound["late_requests"], 10)
        self.assertGreater(max(bound["e2els"]), 0.7 * bound["duration"])

    def test_prompts_match_the_flags(self):
        text = self.path("languages.txt", LANGUAGES * 5)
        done = self.cluster.run("bench", "big", "--requests=30", "--prompt-length=40", f"--prompts-from={text}",
                                "--max-tokens=4", "--save-detailed")
        self.check_load(done, 30, 4)
        self.assertTrue(all(37 <= size <= 41 for size in done["input_lens"]), done["input_lens"])
        done = self.cluster.run("bench", "big", "--requests=5", "--prompt-tokens=23", "--max-tokens=4", "--save-detailed",
                                "--http")
        self.assertEqual(done["input_lens"], [23] * 5)
        own = self.path("own.jsonl", "".join(json.dumps({"prompt": "x" * n, "output_tokens": n}) + "\n"
                                             for n in (3, 5, 7)))
        result = os.path.join(self.cluster.folder, "result.json")
        said = self.cluster.cli("bench", "big", "--requests=6", f"--dataset-path={own}", "--save-result",
                                f"--result-filename={result}", "--save-detailed").stdout
        with open(result) as file:
            done = json.load(file)
        self.assertIn(result, said)
        self.assertEqual(sorted(done["output_lens"]), [3, 3, 5, 5, 7, 7])
        extra = done["input_lens"][0] - done["output_lens"][0]  # tokens that the tokenizer adds
        self.assertEqual(done["input_lens"], [extra + n for n in done["output_lens"]])

    def test_single_request_rows_are_consistent(self):
        artifacts = self.cluster.run("models")["artifacts"]
        size = next(int(a["bytes"]) for a in artifacts if a["name"] == "big")
        rows = self.cluster.run("bench", "big", "--pp=32", "--tg=16", "--pg=32,16", "--repetitions=3", "--no-speculation")
        self.assertEqual([row["test"] for row in rows], ["pp32", "tg16", "pp32+tg16"])
        for row, tokens in zip(rows, (32, 16, 48)):
            self.assertEqual(row["n_prompt"] + row["n_gen"], tokens)
            self.assertAlmostEqual(row["avg_ts"], mean(row["samples_ts"]), delta=1e-6 * row["avg_ts"])
            self.assertAlmostEqual(row["avg_ns"], mean(row["samples_ns"]), delta=2)
            for nanoseconds, rate in zip(row["samples_ns"], row["samples_ts"]):
                self.assertAlmostEqual(nanoseconds * 1e-9 * rate, tokens, delta=0.01)
            self.assertEqual(row["model_size"], size)
            self.assertGreater(row["model_size"], row["model_n_params"])  # some bytes for each
            self.assertEqual((row["backends"], row["drafts"]), ("CPU", "off"))
        # Of a context that ends inside a block, too, all is in the cache.
        row = self.cluster.run("bench", "big", "--pp=8", "--depth=21", "--repetitions=2")[0]
        self.assertEqual((row["test"], row["n_depth"]), ("pp8 @ d21", 21))
        for nanoseconds, rate in zip(row["samples_ns"], row["samples_ts"]):
            self.assertAlmostEqual(nanoseconds * 1e-9 * rate, 8, delta=0.01)

    def test_report_names_the_workers_of_the_model(self):
        self.cluster.run("serve", "big", "--name=there", "--tensor-parallel=1")
        row = self.cluster.run("bench", "there", "--tg=4", "--repetitions=1")[0]
        self.assertEqual((row["backends"], row["n_threads"], row["drafts"]), ("CPU", 1, "none"))
        self.assertTrue(row["cpu_info"])
        self.cluster.run("unserve", "there")

    def test_csv_and_json_output_parse(self):
        def rows(form):
            return self.cluster.cli("bench", "big", "--tg=4", "--tg=8", "--repetitions=1", "-o", form).stdout
        self.assertEqual([int(row["n_gen"]) for row in csv.DictReader(io.StringIO(rows("csv")))], [4, 8])
        self.assertEqual([json.loads(line)["n_gen"] for line in rows("jsonl").splitlines()], [4, 8])
        self.assertEqual([row["n_gen"] for row in json.loads(rows("json"))], [4, 8])
        self.assertEqual(len({line.count("|") for line in rows("md").splitlines()}), 1)
        base = sqlite3.connect(":memory:")
        base.executescript(rows("sql"))
        base.executescript(rows("sql"))
        found = base.execute("SELECT n_gen, typeof(avg_ts), n_threads FROM espalier_bench ORDER BY n_gen").fetchall()
        self.assertEqual(found, [(4, "real", None)] * 2 + [(8, "real", None)] * 2)

    def test_failed_requests_are_counted_and_the_rest_reported(self):
        mixed = self.path("mixed.jsonl", json.dumps({"prompt": "x"}) + "\n" + json.dumps({"prompt": "x" * 1000}) + "\n")
        with self.assertRaises(Failed) as caught:
            self.cluster.run("bench", "big", "--requests=4", f"--dataset-path={mixed}", "--max-tokens=4")
        done = json.loads(caught.exception.out)
        self.assertEqual((done["completed"], done["failed"], done["total_output_tokens"]), (2, 2, 8))
        self.assertIn("2 of 4 requests failed", caught.exception.err)


if __name__ == "__main__":
    unittest.main()
