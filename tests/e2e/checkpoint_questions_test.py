"""Questions that a run's checkpoints answer without training: its parameters, and evaluations of them."""
import glob
import json
import math
import os
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, read  # noqa: E402

MODEL = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "--sequence-length=32",
         "-b", "16", "--lr=3e-3", "--seed=5", "--holdout=0.1", "--record=every:10"]
DIGITS = [f"--onnx={DATA}/digits_cnn.onnx", f"--dataset={DATA}/digits.npz", "--input", "labels=y", "-b", "64",
          "--holdout=0.2", "--record=every:10", "--max-devices=1"]
STEPS = 40


def parameters(path):
    """Name -> elements, of a file of f32 tensors."""
    with open(path, "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {}
    for name, tensor in head.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            tensors[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return tensors


class CheckpointQuestionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2, lease=5)
        cls.addClassCleanup(cls.cluster.close)
        text = os.path.join(DATA, "genesis.txt")
        cls.jobs = {name: cls.cluster.train(*MODEL, "-d", text, f"--steps={STEPS}", f"--name={name}", *flags)
                    for name, flags in (("one", ["--max-devices=1"]), ("two", ["--only-data-parallel"]))}
        cls.digits = cls.cluster.train(*DIGITS, f"--steps={STEPS}", "--name=digits")
        for job in (*cls.jobs.values(), cls.digits):
            assert cls.cluster.wait_for_job(job)["state"].upper() == "SUCCEEDED"

    def ask(self, run, *flags):
        """(name, reduction) -> step -> value; and the replay."""
        done = self.cluster.cli("replay", run, "--at=checkpoints", *flags, "--json", check=False)
        answers, replay = {}, None
        for line in map(json.loads, done.stdout.splitlines()):
            if "step" in line:
                answers.setdefault((line["name"], line["reduction"]), {})[line["step"]] = line["value"]
            else:
                replay = line.get("replay", replay)
        return answers, replay

    def test_parameters_are_those_of_the_trained_model(self):
        for run in self.jobs:
            answers, replay = self.ask(run, "--log=norm(param(*))", "--log=min(param(*))", "--log=max(state(*, *))")
            self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
            folder = os.path.join(self.cluster.folder, "model-" + run)
            self.cluster.cli("models", "download", self.cluster.job(self.jobs[run])[0]["output_model"], folder)
            model = parameters(os.path.join(folder, "model.safetensors"))
            self.assertGreater(len(model), 10)
            for name, elements in model.items():
                norms = answers[f"param({name})", "norm"]
                self.assertEqual(sorted(norms), list(range(0, STEPS + 1, 10)))
                norm = math.sqrt(math.fsum(x * x for x in elements))
                self.assertAlmostEqual(norms[STEPS], norm, delta=1e-12 * norm)
                self.assertEqual(answers[f"param({name})", "min"][STEPS], min(elements))
                self.assertEqual(answers[f"state({name}, adam_v)", "max"][0], 0)
                self.assertGreater(answers[f"state({name}, adam_v)", "max"][STEPS], 0)

    def test_an_evaluation_is_that_of_the_job(self):
        for run, job in self.jobs.items():
            answers, replay = self.ask(run, "--evaluate=holdout", "--log=norm(param(model.norm.weight))")
            self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
            losses = answers["evaluation.loss", ""]
            self.assertEqual(sorted(losses), list(range(0, STEPS + 1, 10)))
            self.assertEqual(losses[STEPS], self.cluster.job(job)[0]["evaluation"]["loss"])
            self.assertLess(losses[STEPS], losses[10])
            self.assertIn(("param(model.norm.weight)", "norm"), answers)

    def test_confusion_matrices_count_every_example_once(self):
        answers, replay = self.ask("one", "--evaluate=holdout", "--log=confusion(lm_head, batch(targets))",
                                   "--log=histogram(lm_head, 4, -1e9, 1e9)")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        examples = self.cluster.job(self.jobs["one"])[0]["evaluation_examples"]
        self.assertNotEqual(examples % 16, 0, "the last batch has padding")
        labels = examples * 32
        for steps, matrix in answers["evaluation.lm_head, batch(targets)", "confusion"].items():
            self.assertEqual(matrix["dims"], [256, 256])
            self.assertEqual(sum(matrix["values"]), labels)
            right = sum(matrix["values"][::257])
            self.assertAlmostEqual(right / labels, answers["evaluation.accuracy", ""][steps], delta=1e-6)
        for histogram in answers["evaluation.lm_head", "histogram(4, -1e+09, 1e+09)"].values():
            self.assertEqual((sum(histogram["counts"]), histogram["outside"]), (256 * labels, 0))

    def test_an_output_has_the_examples_of_the_value_that_it_is(self):
        probes = {name: f"confusion({name}, batch(y))" for name in ("logits", "/10/Gemm")}
        answers, replay = self.ask("digits", "--evaluate=holdout", *(f"--log={probe}" for probe in probes.values()))
        self.assertEqual((replay["state"], replay["notes"]), ("REPLAY_SUCCEEDED", []))
        examples = self.cluster.job(self.digits)[0]["evaluation_examples"]
        self.assertNotEqual(examples % 64, 0, "the last batch has padding")
        for steps, matrix in answers["evaluation.logits, batch(y)", "confusion"].items():
            self.assertEqual(sum(matrix["values"]), examples)
            self.assertEqual(matrix, answers["evaluation./10/Gemm, batch(y)", "confusion"][steps])

    def test_a_run_is_told_by_the_steps_that_were_done(self):
        run = self.cluster.run("runs", "get", "digits")
        best = run["losses"]["best_step"] + 1
        self.assertRegex(self.cluster.cli("runs", "get", "digits").stdout, rf"best [0-9.e-]+ after {best} steps\n")
        listed, = self.cluster.run("runs", "digits")["runs"]
        self.assertEqual((listed["all_checkpoints"], listed.keys() & {"attempts", "checkpoints"}), (STEPS // 10, set()))

    def test_an_input_of_another_name_is_told_by_its_column(self):
        done = self.cluster.cli("replay", "digits", "--at=checkpoints", "--evaluate=holdout",
                                "--log=confusion(logits, batch(labels))", "--estimate", check=False)
        self.assertEqual(done.returncode, 4)
        self.assertIn("'labels' reads the column 'y': batch(y)", done.stderr)

    def test_an_uploaded_dataset_is_evaluated_by_its_name(self):
        self.cluster.cli("models", "upload", "by-name", os.path.join(DATA, "digits.npz"))
        answers, replay = self.ask("digits", "--evaluate=by-name", f"--steps={STEPS}")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        self.assertIn(("evaluation[by-name].loss", ""), answers)
        done = self.cluster.cli("replay", "digits", "--at=checkpoints", "--evaluate=by-nobody", check=False)
        self.assertIn("no dataset of that name is uploaded", done.stderr)

    def test_wildcards_leave_out_the_columns_that_espalier_adds(self):
        done = self.cluster.cli("replay", "digits", "--log=batch(*)", "--steps=0", "--json")
        rows = [line for line in map(json.loads, done.stdout.splitlines()) if "step" in line]
        self.assertEqual({row["name"] for row in rows}, {"batch(x)", "batch(y)"})
        folder = os.path.join(self.cluster.folder, "data", "checkpoints")
        self.assertEqual([name for name in os.listdir(folder) if "@replay-" in name], [], "a segment leaves nothing")

    def test_step_0_of_an_imported_model_has_its_initial_values(self):
        for steps, there in ((f"0:{STEPS + 1}", list(range(0, STEPS + 1, 10))), ("0:1", [0])):
            answers, replay = self.ask("digits", "--log=param(10.*)", f"--steps={steps}")
            self.assertEqual((replay["state"], replay["notes"]), ("REPLAY_SUCCEEDED", []))
            self.assertEqual(sorted(answers["param(10.bias)", "full"]), there)
        done = self.cluster.cli("replay", "digits", "--log=param(10.*)", "--steps=0", "--json")
        trained = [line for line in map(json.loads, done.stdout.splitlines()) if "step" in line]
        self.assertEqual(len(trained), 2)
        for row in trained:
            self.assertEqual(row["value"], answers[row["name"], "full"][0])

    def test_a_run_that_began_with_weights_says_that_step_0_is_left_out(self):
        model = self.cluster.job(self.jobs["one"])[0]["output_model"]
        job = self.cluster.train("--init", model, "--sequence-length=32", "-b", "16", "--record=every:10", "-d",
                                 os.path.join(DATA, "genesis.txt"), "--steps=10", "--name=tuned", "--max-devices=1")
        self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
        answers, replay = self.ask("tuned", "--log=norm(param(model.norm.weight))")
        self.assertEqual(sorted(answers["param(model.norm.weight)", "norm"]), [10])
        self.assertTrue(any(f"step 0 are left out: it began with the weights of the model '{model}" in note
                            for note in replay["notes"]), replay["notes"])

    def test_checkpoints_are_read_without_the_data(self):
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "letters.txt")
            with open(text, "w") as file:
                file.write("all that is trained on " * 300)
            job = self.cluster.train(*MODEL, "-d", text, "--steps=10", "--name=dataless", "--max-devices=1")
            self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
            asked = ["--log=norm(param(model.norm.weight))", "--log=max(state(*, adam_v))"]
            before, _ = self.ask("dataless", *asked)
            data = self.cluster.run("runs", "get", "dataless")["job"]["spec"]["dataset"]["uri"].removeprefix("artifact:")
            self.cluster.cli("models", "delete", data, "--force")
            for says in ("was deleted", "was replaced: what is there now has the SHA-256"):
                answers, replay = self.ask("dataless", *asked)
                self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
                self.assertEqual(answers.keys(), before.keys())
                for name, values in answers.items():
                    self.assertEqual(values, {10: before[name][10]})
                self.assertTrue(any(says in note for note in replay["notes"]), replay["notes"])
                listed = self.cluster.run("runs", "values", "dataless", "*model.norm.weight*")
                self.assertEqual([value["log"] for value in listed["values"]][:2],
                                 ["param(model.norm.weight)", "state(model.norm.weight, adam_m)"])
                self.assertIn(says, listed["notes"][0])
                _, replay = self.ask("dataless", "--log=norm(param(nothing))")
                self.assertIn("there is no parameter 'nothing'", replay["error"])
                done = self.cluster.cli("replay", "dataless", "--estimate", check=False)
                self.assertIn(says, done.stderr)
                if says == "was deleted":
                    with open(text, "w") as file:
                        file.write("another text " * 300)
                    self.cluster.cli("models", "upload", data, text, "--kind=dataset")

    def test_values_that_rewrites_removed_are_evaluated(self):
        """Fusion made silu(gate) * up one operator: no program has the silu."""
        for run in self.jobs:
            answers, replay = self.ask(run, "--evaluate=holdout", "--log=layers.1.silu", "--log=layers.1.mlp.gate_proj",
                                       "--log=norm(layers.*.silu)", f"--steps={STEPS}:{STEPS + 1}")
            self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
            self.assertTrue(any("'layers.1.silu' are computed again" in note for note in replay["notes"]), replay["notes"])
            silu = answers["evaluation.layers.1.silu", "full"][STEPS]
            gate = answers["evaluation.layers.1.mlp.gate_proj", "full"][STEPS]
            examples = self.cluster.job(self.jobs[run])[0]["evaluation_examples"]
            self.assertEqual(silu["dims"], [examples, 32, 128])
            for s, g in zip(silu["values"], gate["values"], strict=True):
                self.assertAlmostEqual(s, g / (1 + math.exp(-g)), delta=1e-4)
            norm = math.sqrt(math.fsum(s * s for s in silu["values"]))
            self.assertAlmostEqual(answers["evaluation.layers.1.silu", "norm"][STEPS], norm, delta=1e-4 * norm)

    def test_another_dataset_is_evaluated(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "other.txt")
            with open(other, "w") as file:
                file.write(read(os.path.join(DATA, "genesis.txt"))[:32 * 50 + 1].upper())
            answers, replay = self.ask("one", f"--evaluate={other}")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        own, _ = self.ask("one", "--evaluate=holdout")
        name, = (name for name, _ in answers if name.endswith(".loss"))
        self.assertRegex(name, r"^evaluation\[other-[0-9a-f]{16}\]\.loss$")
        self.assertGreater(answers[name, ""][STEPS], own["evaluation.loss", ""][STEPS])
        history = self.cluster.cli("history", "one", "--json", "--log=evaluation[other*].loss").stdout.splitlines()
        self.assertEqual([json.loads(line)["step"] for line in history], sorted(answers[name, ""]))
        said = self.cluster.cli("history", "one", "--log=evaluation.los").stdout
        self.assertEqual(said, "nothing is recorded that matches; there is no evaluation.los; "
                         "did you mean 'evaluation.loss'?\n")

    def test_a_confusion_that_cannot_be_counted_is_refused(self):
        for probe, says in (("confusion(lm_head, layers.0.add)", "labels are f32"),
                            ("confusion(layers.0.add, batch(targets))", r"a label \d+, but the logits have 64 classes")):
            done = self.cluster.cli("replay", "one", "--at=checkpoints", "--evaluate=holdout", f"--log={probe}",
                                    check=False)
            self.assertNotEqual(done.returncode, 0, probe)
            self.assertIn(probe, done.stderr)
            self.assertRegex(done.stderr, says)

    def test_a_damaged_checkpoint_is_named(self):
        job = self.cluster.train(*MODEL, "-d", os.path.join(DATA, "genesis.txt"), "--steps=20", "--name=damaged",
                                 "--max-devices=1")
        self.cluster.wait_for_job(job)
        file, = glob.glob(f"{self.cluster.folder}/data/checkpoints/{job}/**/step-10-*/rank-0.safetensors", recursive=True)
        with open(file, "r+b") as shard:
            shard.seek(-3, os.SEEK_END)
            shard.write(b"\x55")
        _, replay = self.ask("damaged", "--log=norm(param(*))")
        self.assertIn("step-10", json.dumps(replay))
        self.assertIn("rank-0.safetensors", json.dumps(replay))
        # The worker has the initial values when it reads this one.
        answers, replay = self.ask("damaged", "--evaluate=holdout", "--workers=1")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        self.assertEqual(sorted(answers["evaluation.loss", ""]), [0, 20])
        self.assertEqual(answers["evaluation.loss", ""][20], self.cluster.job(job)[0]["evaluation"]["loss"])
        self.assertTrue(any("rank-0.safetensors" in note for note in replay["notes"]), replay["notes"])

    def test_an_estimate_counts_the_answers(self):
        flags = ["--evaluate=holdout", "--log=confusion(lm_head, batch(targets))", "--log=norm(param(*))"]
        asked = self.cluster.cli("replay", "one", "--at=checkpoints", *flags, "--estimate", "--json").stdout
        estimate = json.loads(asked)
        answers, replay = self.ask("one", *flags)
        self.assertEqual(estimate["rows"], sum(map(len, answers.values())))
        self.assertEqual(estimate["rows"], replay["rows"])
        matrices = 5 * 256 * 256 * 8
        self.assertGreater(estimate["bytes"], matrices)
        self.assertLess(estimate["bytes"], 1.2 * matrices)


if __name__ == "__main__":
    unittest.main()
