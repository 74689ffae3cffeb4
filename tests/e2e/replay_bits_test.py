"""Replays from a checkpoint have the recorded bits, whatever the model, its optimizer and its plan, with probes of each kind."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402

STEPS, EVERY = 10, 4
PARALLEL = "--only-data-parallel"
PROBES = ["norm(*)", "std(param(*))", "norm(grad(*))", "top_k(grad(*), 2)", "mean(update(*))", "max(state(*, *))",
          "quantiles(batch(*), 0.5)", "histogram(param(*), 4)", "sample(update(*), 3)", "count_nan(state(*, *))", "mean(loss)"]


def llama(*flags, layers=2):
    return [f"--model=llama:hidden=32,layers={layers},heads=4,kv_heads=2,intermediate=64,positions=32", "--sequence-length=16",
            "-d", f"{DATA}/genesis.txt", "-b", "8", *flags]


def onnx(name, *flags, data=None, labels="labels_", batch=4):
    return [f"--onnx={DATA}/onnx/{name}.onnx", "-d", f"{DATA}/onnx/{data or name}.npz", *(["--input", f"labels={labels}"] if labels else []),
            "-b", str(batch), "--holdout=0", *flags]


def digits(*flags):
    return [f"--onnx={DATA}/digits_cnn.onnx", "-d", f"{DATA}/digits.npz", "--input", "labels=y", "-b", "16", *flags]


QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 256, "hidden_size": 32,
         "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": 128, "tie_word_embeddings": True, "hidden_act": "silu", "rms_norm_eps": 1e-6,
         "rope_theta": 10000.0, "tokenizer": "bytes"}
# Name: workers, flags.
CASES = {
    "schedule-clipping-penalties": (1, llama("--schedule=cosine", "--warmup=5", "--clip-norm=1", "--l1=1e-6", "--l2=1e-4")),
    "f16": (1, llama("--precision=f16", "--freeze=model.layers.0.*")),
    "micro-batches": (1, llama("--micro-batches=2", "--optimizer=sgd", "--momentum=0.9", "--nesterov")),
    "rewrites": (1, llama("--rewrite-budget=20", layers=1)),
    "zero-0-validation": (2, llama(PARALLEL, "--zero-stage=0", "--validate-every=3", "--keep-best")),
    "zero-1-adafactor": (2, llama(PARALLEL, "--zero-stage=1", "--optimizer=adafactor")),
    "zero-2-micro-batches": (2, llama(PARALLEL, "--zero-stage=2", "--micro-batches=2", "--precision=bf16", layers=1)),
    "zero-3-of-four": (4, llama(PARALLEL, "--zero-stage=3", "--clip-norm=0.5", "--precision=f16", layers=1)),
    "pipeline": (2, llama("--pipeline-stages=2", "--micro-batches=2")),
    "pipeline-of-replicas": (4, llama("--pipeline-stages=2", "--micro-batches=2", "--precision=f16")),
    "search": (4, llama("--budget=100", "--optimizer=lion", layers=1)),
    "batch-norm": (2, digits(PARALLEL, "--loss=sparse_categorical_crossentropy:class_weights=1,2,1,1,3,1,1,1,2,1")),
    "batch-norm-zero-1": (4, onnx("bn_0_0", PARALLEL, "--zero-stage=1", labels="y", batch=8)),
    "drop-path": (2, onnx("convnext_droppath", PARALLEL, "--optimizer=rmsprop")),
    "random-numbers": (1, onnx("vae_randn_like", "--loss=identity_loss", labels=None)),
    "roberta": (2, onnx("hf_roberta", PARALLEL, "--precision=f16", "--metrics=none")),
    "detr": (1, onnx("detr_like", "--no-shuffle", "--metrics=none")),
    "repeated-by-the-batch": (2, onnx("cls_token_repeat", PARALLEL, "--zero-stage=2", "--optimizer=adagrad")),
    "last-token": (2, onnx("last_token_pool_arange", PARALLEL)),
    "frozen-backbone": (2, onnx("frozen_backbone", PARALLEL, "--parameter-group=*bias:wd=0,lr=0.1")),
    "graph-network": (1, [f"--onnx={DATA}/onnx/gnn_scatter_add.onnx", "-d", f"{DATA}/losses/gnn_amax.npz", "--input",
                          "labels=labels_", "-b", "12", "--holdout=0", "--metrics=none"]),
}
# With 2 MiB: flags, whether tensors are recomputed rather than swapped, whether operators run in tiles of the batch.
SMALL_MEMORY = {
    "swaps": (["-b", "32", "--no-recompute"], False, True),
    "recomputation": (["-b", "20", "--no-swap"], True, False),
    "recomputation-in-tiles": (["-b", "24", "--no-swap"], True, True),
    "what-is-fastest": (["-b", "32"], None, None),  # which it is depends on times that were measured
}


def kind(name):
    return name.split("(")[0] if "(" in name else "value"


class BitsTest(unittest.TestCase):
    def record(self, cluster, name, flags):
        return cluster.train(*flags, f"--steps={STEPS}", f"--record=every:{EVERY}", "--seed=7", f"--name={name}")

    def replay(self, cluster, run, *flags):
        """Rows by (step, name, reduction), and the replay."""
        done = cluster.cli("replay", run, *(f"--log={probe}" for probe in PROBES), *flags, "--json", check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        replays = [line["replay"] for line in lines if isinstance(line.get("replay"), dict)]
        if not replays:
            raise Failed(done.returncode, done.stdout, done.stderr)
        rows = [line for line in lines if "step" in line]
        by_name = {(row["step"], row["name"], row["reduction"]): row["value"] for row in rows}
        self.assertEqual(len(by_name), len(rows), "each answer once")
        return by_name, replays[0]

    def check(self, cluster, run, job, workers):
        job = cluster.wait_for_job(job)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        # From the checkpoint of step 4, through that of step 8.
        rows, replay = self.replay(cluster, run, f"--steps={EVERY}:{STEPS}", f"--workers={workers}")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        [segment] = replay["segments"]
        self.assertEqual((segment["checkpoint_step"], segment["comparison"]["compared"], segment["comparison"]["bits"]),
                         (EVERY, STEPS - EVERY, True), segment)
        steps = {step: {key[1:] for key in rows if key[0] == step} for step in range(EVERY, STEPS)}
        for names in steps.values():
            self.assertEqual(names, steps[EVERY])
        asked = {(reduction, kind(name)) for name, reduction in steps[EVERY]}
        self.assertEqual(asked, {("norm", "value"), ("std", "param"), ("norm", "grad"), ("top_k(2)", "grad"), ("mean", "update"),
                                 ("max", "state"), ("quantiles(0.5)", "batch"), ("histogram(4)", "param"),
                                 ("sample(3)", "update"), ("count_nan", "state"), ("mean", "value")})
        recorded = cluster.losses(job["id"])
        for step in range(EVERY, STEPS):
            self.assertAlmostEqual(rows[step, "loss", "mean"], recorded[step], delta=1e-6 * abs(recorded[step]))
        # The last third begins at the checkpoint of step 8: what was saved there is what went on.
        again, replay = self.replay(cluster, run, f"--steps={EVERY}:{STEPS}", "--segment=3/3")
        self.assertEqual((replay["state"], replay["segments"][0]["checkpoint_step"]), ("REPLAY_SUCCEEDED", 2 * EVERY), replay)
        self.assertEqual(again, {key: value for key, value in rows.items() if key[0] >= 2 * EVERY})

    def wait_for_idle(self, cluster, count):
        cluster.wait(lambda: sum(worker["state"].upper() == "IDLE" for worker in cluster.run("status")["workers"]) == count, 30,
                     f"{count} workers are idle")

    def test_models_and_plans(self):
        with Cluster(workers=4, lease=10) as cluster:
            path = os.path.join(cluster.folder, "qwen3.json")
            with open(path, "w") as file:
                json.dump(QWEN3, file)
            cases = {**CASES, "qwen3": (2, [f"--model={path}", *llama(PARALLEL)[1:]])}
            jobs = {name: self.record(cluster, name, [*flags, f"--max-devices={workers}", f"--min-devices={workers}"])
                    for name, (workers, flags) in cases.items()}
            for name, (workers, _) in cases.items():
                with self.subTest(name):
                    self.check(cluster, name, jobs[name], workers)

    def test_a_job_that_was_resumed_with_fewer_workers(self):
        """Each attempt's steps are replayed by its plan, on as many workers."""
        with Cluster(workers=2) as cluster:
            job = cluster.train(*llama(PARALLEL, "--zero-stage=2", "-b", "64"), "--steps=1000", "--record=every:50", "--seed=7", "--name=resumed")
            cluster.wait_for_step(job, 60)
            cluster.cli("jobs", "checkpoint", job)
            cluster.cli("jobs", "cancel", job)
            self.wait_for_idle(cluster, 2)
            cluster.kill(cluster.workers[1])
            self.wait_for_idle(cluster, 1)
            cluster.cli("jobs", "resume", job)
            self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
            cluster.start_worker(1)
            cluster.wait_for_workers(2)
            attempts = cluster.run("runs", "get", "resumed")["attempts"]
            self.assertEqual([len(attempt["plan"]["devices"]) for attempt in attempts], [2, 1])
            border = attempts[1]["first_step"]
            before = (border - 10) // 50 * 50
            rows, replay = self.replay(cluster, "resumed", f"--steps={border - 10}:{border + 10}")
            self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
            self.assertEqual([(segment["checkpoint_step"], segment["comparison"]["compared"], segment["comparison"]["bits"])
                              for segment in replay["segments"]],
                             [(before, border - before, True), (border, 10, True)])
            self.assertEqual({key[0] for key in rows}, set(range(border - 10, border + 10)))

    def test_swaps_and_recomputation(self):
        with Cluster(workers=1, lease=10, worker_flags=[f"--memory-limit={2 << 20}"]) as cluster:
            for name, (flags, recomputes, tiles) in SMALL_MEMORY.items():
                with self.subTest(name):
                    job = self.record(cluster, name, llama("--single-device", *flags))
                    self.check(cluster, name, job, 1)
                    plan = cluster.job(job)[0]["plan"]
                    evictions = [eviction["recompute"] for eviction in plan["memory_plans"][0]["evictions"]]
                    self.assertTrue(evictions)
                    if recomputes is not None:
                        self.assertIn(recomputes, evictions)
                        self.assertEqual(bool(plan["batch_tiles"]), tiles)


if __name__ == "__main__":
    unittest.main()
