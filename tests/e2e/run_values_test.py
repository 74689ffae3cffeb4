"""What `espalier runs` says of a run: what it was made with, and the names that a replay can log, all of them."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402

LLAMA = ["--model=llama:hidden=32,layers=2,heads=4,kv_heads=2,intermediate=64,positions=32", "--sequence-length=16", "-b", "8",
         "--steps=10", "-d", os.path.join(DATA, "genesis.txt")]
DIGITS = [f"--onnx={DATA}/digits_cnn.onnx", f"--dataset={DATA}/digits.npz", "--input", "labels=y", "--metrics=accuracy",
          "--batch-size=64", "--steps=10", "--optimizer=sgd:momentum=0.9", "--lr=0.01"]
SMALL = 64  # elements; tensors of at most so many are read in full


def probes(value):
    """What the list says can be logged of a value."""
    logs = [value["log"]]
    name = value["log"].removeprefix("param").strip("()")
    if value.get("gradient"):
        logs.append(f"grad({name})")
    if value.get("update"):
        logs.append(f"update({name})")
    return logs


class RunValuesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2, lease=5)
        cls.addClassCleanup(cls.cluster.close)
        for name, flags in {"one": [*LLAMA, "--max-devices=1"], "two": [*LLAMA, "--only-data-parallel"],
                            "digits": [*DIGITS, "--max-devices=1"], "pair": [*DIGITS, "--only-data-parallel"]}.items():
            job = cls.cluster.train(*flags, "--record=every:5", f"--name={name}")
            done = cls.cluster.wait_for_job(job)
            assert done["state"].upper() == "SUCCEEDED", done

    def values(self, run, *pattern):
        return self.cluster.run("runs", "values", run, *pattern)["values"]

    def replay(self, run, logs):
        done = self.cluster.cli("replay", run, "--steps=7", "--json", *(f"--log={log}" for log in logs), check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        rows = [line for line in lines if "step" in line]
        replays = [line["replay"] for line in lines if "replay" in line and "step" not in line]
        self.assertEqual([replay["state"] for replay in replays], ["REPLAY_SUCCEEDED"], done.stderr)
        return rows, replays[0]

    def test_every_name_that_is_listed_is_answered(self):
        for run in ("one", "two", "digits", "pair"):
            values = self.values(run)
            logs, sizes = {}, {}
            for value in values:
                sizes[value["log"]] = dims = [int(size) for size in value["type"].get("dims", [])]
                elements = 1
                for size in dims:
                    elements *= size
                for log in probes(value):
                    logs[log] = log if elements <= SMALL else f"norm({log})"
            self.assertEqual(len(logs), sum(map(len, map(probes, values))), "a name is listed twice")
            estimate = self.cluster.run("replay", run, "--steps=7", "--estimate", *(f"--log={log}" for log in logs.values()))
            self.assertEqual((estimate["lacking"], int(estimate["rows"])), ([], len(logs)))
            rows, replay = self.replay(run, logs.values())
            self.assertTrue(all(segment["comparison"]["bits"] for segment in replay["segments"]))
            self.assertEqual({row["name"] for row in rows}, set(logs))
            for row in rows:
                if row["reduction"] == "full" and row["name"] in sizes:
                    shown = next(value["type"]["dtype"] for value in values if value["log"] == row["name"])
                    self.assertEqual((row["value"]["dims"], row["value"]["dtype"]) if isinstance(row["value"], dict) else ([], "f32"),
                                     (sizes[row["name"]], shown.lower()), row)

    def test_every_name_that_wildcards_match_is_listed(self):
        for run in ("one", "pair"):
            listed = {log for value in self.values(run) for log in probes(value)}
            rows, _ = self.replay(run, [f"count_nan({any_name})" for any_name in
                                        ("*", "param(*)", "grad(*)", "update(*)", "state(*, *)", "batch(*)",
                                         "batch(espalier.*)")])
            found = {row["name"] for row in rows}
            internal = {name for name in found if "espalier." in name}
            self.assertEqual({log for value in self.values(run, "*espalier.*") for log in probes(value)}, internal)
            found -= internal
            self.assertLessEqual(found, listed)
            # They do not mean names of outputs, nor gradients of what rewrites removed, unless nothing else matches.
            more = {value["log"] for value in self.values(run) if value["output_of"] or value["gradient_recomputed"]}
            self.assertLessEqual(listed - found, more | {f"grad({name})" for name in more})

    def test_what_a_wildcard_of_gradients_leaves_out_is_said(self):
        for run in ("one", "pair"):
            rows, replay = self.replay(run, ["norm(grad(*))"])
            answered = {row["name"] for row in rows}
            wanted = {f"grad({value['log'].removeprefix('param').strip('()')})" for value in self.values(run, "grad(*)")
                      if not value["output_of"]}
            note, = (note for note in replay["notes"] if "'*' leaves out" in note)
            self.assertGreater(len(wanted - answered), 1)
            for log in wanted - answered:
                self.assertIn(f"'{log}'", note)
            rows, _ = self.replay(run, [f"norm({log})" for log in wanted - answered])
            self.assertEqual({row["name"] for row in rows}, wanted - answered)

    def test_a_wildcard_that_means_removed_gradients_only_answers_them(self):
        rows, replay = self.replay("one", ["norm(grad(layers.*.sil*))", "norm(grad(layers.1.add_2*))"])
        self.assertEqual({row["name"] for row in rows},
                         {"grad(layers.0.silu)", "grad(layers.1.silu)", "grad(layers.1.add_2)"})
        self.assertFalse([note for note in replay["notes"] if "leaves out" in note])
        rows, _ = self.replay("digits", ["norm(grad(logit*))", "norm(grad(logits))"])
        self.assertEqual([row["name"] for row in rows], ["grad(logits)"])

    def test_what_is_asked_twice_is_answered_once(self):
        rows, _ = self.replay("one", ["norm(*)", "loss", "norm(lm_head)", "loss", "norm(layers.1.silu)", "norm(lm*)"])
        asked = [(row["name"], row["reduction"]) for row in rows]
        self.assertEqual(len(asked), len(set(asked)))
        self.assertLess({("loss", "full"), ("lm_head", "norm"), ("layers.1.silu", "norm")}, set(asked))

    def test_kinds_types_and_what_rewrites_removed(self):
        by_log = {value["log"]: value for value in self.values("one")}
        weight = by_log["param(model.norm.weight)"]
        self.assertEqual((weight["kind"], weight["gradient"], weight["update"], weight["type"]["dims"]), ("PARAMETER", True, True, [32]))
        self.assertEqual(by_log["state(model.norm.weight, adam_m)"]["kind"], "OPTIMIZER_STATE")
        tokens = by_log["batch(tokens)"]
        self.assertEqual((tokens["kind"], tokens["type"]), ("BATCH_INPUT", {"dtype": "I32", "dims": [8, 16]}))
        # Fusion made silu(gate) * up one operator.
        silu = by_log["layers.1.silu"]
        self.assertEqual((silu["kind"], silu["recomputed"], silu["type"]["dims"]), ("VALUE", True, [8, 16, 64]))
        self.assertFalse(by_log["layers.1.mlp.gate_proj"]["recomputed"])
        places = [value["name"] for value in self.values("one", "value(*)")]
        self.assertLess(places.index("layers.0.silu"), places.index("layers.1.silu"), "as they are computed")
        text = self.cluster.cli("runs", "values", "one", "layers.1.silu").stdout
        self.assertIn("f32[8, 16, 64]", text)
        self.assertIn("recomputed", text)

    def test_patterns_are_those_of_probes(self):
        everything = self.values("one")

        def logs(values):
            return [value["log"] for value in values]

        for pattern, wanted in {
            "*norm*": lambda value: "norm" in value["name"],
            "param(*)": lambda value: value["kind"] == "PARAMETER",
            "grad(*norm*)": lambda value: value["gradient"] and "norm" in value["name"],
            "update(*)": lambda value: value["update"],
            "state(*, adam_v)": lambda value: value["kind"] == "OPTIMIZER_STATE" and value["slot"] == "adam_v",
            "state(*)": lambda value: value["kind"] == "OPTIMIZER_STATE",
            "value(layers.0.*)": lambda value: value["kind"] == "VALUE" and value["name"].startswith("layers.0."),
        }.items():
            self.assertEqual(logs(self.values("one", pattern)), logs(filter(wanted, everything)), pattern)
        for arguments, says in ((("one", "param(model.norm.weigt)"), "model.norm.weight"), (("one", "para(*)"), "param"),
                                (("on",), "one"), (("*",), "name one")):
            with self.subTest(arguments), self.assertRaises(Failed) as failed:
                self.cluster.cli("runs", "values", *arguments)
            self.assertIn(says, failed.exception.err)

    def test_a_run_says_what_it_was_made_with(self):
        for run, says in {
            "two": ["dataset        genesis-", "16 tokens per example, 10 % held out, sha256 ", "optimizer      adamw\n",
                    "learning rate  0.001, constant\n", "batch size     8\n", "training       10 steps, seed 0\n",
                    "plan           data parallel over 2 workers\n", "time           ", " a step\n"],
            "digits": ["dataset        digits-", "model          digits_cnn-", "optimizer      sgd, momentum 0.9\n",
                       "learning rate  0.01, constant\n", "batch size     64\n", "plan           one worker\n"],
        }.items():
            text = self.cluster.cli("runs", "get", run).stdout
            for said in says:
                self.assertIn(said, text)
            self.assertIn(f"sha256 {self.cluster.run('runs', 'get', run)['dataset_sha256'][:16]}...\n", text)

    def test_an_unknown_name_of_a_replay_points_to_the_list(self):
        for log in ("norm(grad(model.norm.weigt))", "norm(layers.7.*)"):
            with self.assertRaises(Failed) as failed:
                self.cluster.cli("replay", "one", f"--log={log}", "--estimate")
            self.assertIn("; espalier runs values one@1 lists what can be asked for", failed.exception.err)


if __name__ == "__main__":
    unittest.main()
