"""Planning on real processes: plans for other machines, HTML pages, plan diffs, and jobs that exceed their workers'
memory."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402

MODEL = "--model=llama:hidden=64,layers=6,heads=4"
JOB = [MODEL, f"--dataset={DATA}/genesis.txt", "--steps=5", "-b", "32", "--single-device", "--seed=4"]


class PlanningTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="espalier-swap-")
        flags = [f"--memory-limit={32 << 20}", f"--swap-dir={cls.folder.name}"]
        cls.small = Cluster(workers=1, worker_flags=flags, measure=True).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.small.__exit__(None)
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_memory_planning_keeps_losses(self):
        with Cluster(workers=1) as roomy:
            job = roomy.wait_for_job(roomy.train(*JOB))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            self.assertFalse(job["plan"].get("memory_plans"))
            curve = roomy.losses(job["id"])
        job = self.small.wait_for_job(self.small.train(*JOB))
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        memory, = job["plan"]["memory_plans"]
        self.assertGreater(int(memory["bytes_without"]), 32 << 20)
        self.assertGreater(len(memory["evictions"]), 20)
        self.assertLess(int(job["plan"]["prediction"]["peak_bytes"][0]), 32 << 20)
        self.assertEqual(self.small.losses(job["id"]), curve)

        failed = self.small.wait_for_job(self.small.train(*JOB, "--no-swap", "--no-recompute"))
        self.assertEqual(failed["state"].upper(), "FAILED")
        self.assertIn("does not fit", failed["error"])

    def test_batch_tiling_fits_where_swaps_do_not(self):
        def planned(batch, *flags):
            try:
                return self.small.run("plan", MODEL, "-b", str(batch), "--single-device", "--devices=1",
                                      "--device-memory=0.03125", *flags)["plan"]  # 32 MiB
            except Failed as error:
                self.assertIn("does not fit", error.err)
                return None

        batch = 32
        while planned(batch, "--batch-tiles=1") is not None:
            batch *= 2
        self.assertGreater(int(planned(batch)["batch_tiles"]), 1)
        job = [MODEL, f"--dataset={DATA}/genesis.txt", "--steps=3", "-b", str(batch), "--single-device", "--seed=4",
               "--holdout=0"]
        refused = self.small.wait_for_job(self.small.train(*job, "--batch-tiles=1"))
        self.assertEqual(refused["state"].upper(), "FAILED")
        self.assertIn("does not fit", refused["error"])
        tiled = self.small.wait_for_job(self.small.train(*job))
        self.assertEqual(tiled["state"].upper(), "SUCCEEDED", tiled)
        self.assertGreater(int(tiled["plan"]["batch_tiles"]), 1)
        self.assertIn("batch tiles", self.small.cli("explain", tiled["id"]).stdout)
        same = self.small.losses(tiled["id"])
        with Cluster(workers=1) as roomy:
            whole = roomy.wait_for_job(roomy.train(*job))
            self.assertEqual(whole["state"].upper(), "SUCCEEDED", whole)
            for step, loss in roomy.losses(whole["id"]).items():
                self.assertAlmostEqual(same[step], loss, delta=1e-4 * loss)

    def test_dry_run_predicts_a_job(self):
        job = ["train", MODEL, f"--dataset={DATA}/genesis.txt", "--steps=500", "-b", "8", "--dry-run"]
        reply = self.small.run(*job)
        self.assertTrue(reply["would_run"])
        self.assertEqual(int(reply["total_steps"]), 500)
        self.assertAlmostEqual(reply["total_seconds"], 500 * reply["step_seconds"], delta=1e-6)
        memory, = reply["memory"]
        self.assertLessEqual(int(memory["needed_bytes"]), int(memory["memory_bytes"]))
        self.assertIn("nothing was queued", self.small.cli(*job).stdout)
        jobs = len(self.small.run("jobs")["jobs"])

        large = ["train", "--model=llama:hidden=512,layers=8,heads=8", f"--dataset={DATA}/genesis.txt", "--steps=5",
                 "-b", "8", "--dry-run"]
        done = self.small.cli(*large, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("does not fit", done.stdout)
        waits = self.small.cli(*job, "--min-devices=5", check=False)
        self.assertEqual(waits.returncode, 1, waits.stdout)
        self.assertIn("at least 5 workers are wanted (min_devices); there is 1", waits.stdout)

        # Every operator that is not known, not only the first.
        with open(f"{DATA}/digits_cnn.onnx", "rb") as file:
            model = file.read()
        for name, other in ((b"Relu", b"Rely"), (b"Gemm", b"Gemn")):
            self.assertIn(name, model)
            model = model.replace(name, other)
        with open(self.path("odd.onnx"), "wb") as file:
            file.write(model)
        odd = ["train", f"--onnx={self.path('odd.onnx')}", f"--dataset={DATA}/digits.npz", "--input", "labels=y",
               "-b", "16", "--dry-run"]
        done = self.small.cli(*odd, "--json", check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        reply = json.loads(done.stdout)
        self.assertFalse(reply["would_run"])
        self.assertEqual({op["op"] for op in reply["unsupported"]}, {"Rely", "Gemn"})
        self.assertEqual(len(self.small.run("jobs")["jobs"]), jobs)

    def test_plans_of_onnx_files(self):
        flags = [f"--onnx={DATA}/digits_cnn.onnx", "-b", "64", "--devices=2", "--budget=200"]
        plan = self.small.run("plan", *flags, f"--taskgraph={self.path('tasks.dot')}",
                              f"--compgraph={self.path('graph.dot')}")["plan"]
        self.assertEqual(len(plan["devices"]), 2)
        for name in ("tasks", "graph"):
            with open(self.path(f"{name}.dot"), encoding="utf-8") as file:
                self.assertTrue(file.read().startswith("digraph"))
        narrow = self.small.run("explain", *flags, "--precision=bf16")["plan"]
        self.assertIn("cast", {op["op"] for op in narrow["operators"]})
        self.assertNotIn("cast", {op["op"] for op in plan["operators"]})

    def test_edited_pinned_plan_is_a_search_start(self):
        flags = [MODEL, "-b", "64", "--devices=4", "--budget=500"]
        self.small.run("plan", *flags, "--only-data-parallel", f"--export={self.path('edit.json')}")
        with open(self.path("edit.json")) as file:
            plan = json.load(file)
        pinned = [op for op in plan["operators"] if op["op"] == "linear"][3]
        pinned["degrees"], pinned["devices"], pinned["pinned"] = {}, [2], True
        with open(self.path("edit.json"), "w") as file:
            json.dump(plan, file)
        found = self.small.run("plan", *flags, f"--search-from={self.path('edit.json')}")["plan"]
        again, = [op for op in found["operators"] if op["node"] == pinned["node"]]
        self.assertEqual(again["devices"], [2])
        self.assertTrue(again["pinned"])
        self.assertGreater(int(found["search"]["proposals"]), 0)
        as_it_is = self.small.run("plan", *flags, f"--import={self.path('edit.json')}")["plan"]
        self.assertLessEqual(found["prediction"]["step_seconds"], as_it_is["prediction"]["step_seconds"])

    def test_pipeline_matches_single_worker(self):
        job = [MODEL, f"--dataset={DATA}/genesis.txt", "--steps=5", "-b", "16", "--seed=4"]
        with Cluster(workers=2) as pair:
            alone = pair.wait_for_job(pair.train(*job, "--single-device"))
            staged = pair.wait_for_job(pair.train(*job, "--pipeline-stages=2", "--micro-batches=4"))
            for done in (alone, staged):
                self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
            plan = staged["plan"]
            self.assertEqual(plan["micro_batches"], 4)
            # Consecutive operators: the first ones on one worker, all others on the other.
            devices = [op["devices"] for op in plan["operators"]]
            self.assertEqual(sorted(map(tuple, devices)), list(map(tuple, devices)))
            self.assertEqual({tuple(d) for d in devices}, {(0,), (1,)})
            expected = pair.losses(alone["id"])
            self.assertEqual(len(expected), 5)
            same = pair.losses(staged["id"])
            for step, loss in expected.items():
                self.assertAlmostEqual(same[step], loss, delta=1e-4 * loss)
            shown = pair.cli("explain", staged["id"]).stdout
            self.assertIn("4 micro-batches", shown)
            # The gradient of a batch in parts is that of the whole one.
            parts = pair.wait_for_job(pair.train(*job, "--single-device", "--micro-batches=8"))
            self.assertEqual(parts["state"].upper(), "SUCCEEDED", parts)
            same = pair.losses(parts["id"])
            for step, loss in expected.items():
                self.assertAlmostEqual(same[step], loss, delta=1e-4 * loss)
            self.assertLess(int(parts["plan"]["prediction"]["peak_bytes"][0]),
                            int(alone["plan"]["prediction"]["peak_bytes"][0]) / 2)

    def test_profiles_are_used_in_planning(self):
        job = [MODEL, f"--dataset={DATA}/genesis.txt", "--steps=2", "-b", "16", "--only-data-parallel"]
        with Cluster(workers=2) as pair:
            done = pair.wait_for_job(pair.train(*job))
            self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
            pair.cli("profile", "export", self.path("profile.json"))
            with open(self.path("profile.json"), encoding="utf-8") as file:
                profile = json.load(file)
            # Its two ranks have told what they take to talk, once.
            talk, = profile["communication"]
            self.assertGreater(len(talk["messages"]), 2)
            self.assertEqual({c["ranks"] for c in talk["collectives"]}, {2})
            self.assertIn("ALL_REDUCE", pair.cli("profile", "show", self.path("profile.json")).stdout)

            plan = ["plan", *job[:1], "-b", "16", "--only-data-parallel"]
            own = pair.run(*plan)["plan"]["prediction"]["step_seconds"]
            for collective in talk["collectives"]:
                collective["seconds"] = 10
            with open(self.path("slow.json"), "w") as file:
                json.dump(profile, file)
            slow = pair.run(*plan, f"--profile={self.path('slow.json')}")
            self.assertGreater(slow["plan"]["prediction"]["step_seconds"], 10)
            self.assertLess(own, 5)
            with open(self.path("slow.json"), "w") as file:
                file.write('{"espalier_profile": 1, "communication": 3}')
            with self.assertRaises(Failed) as caught:
                pair.cli(*plan, f"--profile={self.path('slow.json')}")
            self.assertIn("communication", caught.exception.err)

    def test_operator_times_of_runs_are_used_in_planning(self):
        job = [MODEL, f"--dataset={DATA}/genesis.txt", "--steps=12", "-b", "8", "--single-device"]
        runs = []
        for _ in range(2):
            done = self.small.wait_for_job(self.small.train(*job))
            self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
            self.small.cli("profile", "export", self.path("run.json"))
            with open(self.path("run.json"), encoding="utf-8") as file:
                entries = json.load(file)["operators"]["entries"]
            told = {e["key"]: e for e in entries if e["key"].startswith("linear{") and "forward_runs" in e}
            runs.append({key: (e["forward_runs"], e["backward_runs"]) for key, e in told.items()})
        self.assertGreaterEqual(len(runs[0]), 2)
        self.assertEqual(set(runs[0].values()), {(1, 1)})
        self.assertEqual(runs[1], {key: (2, 2) for key in runs[0]})

    def test_plan_for_a_machine_file(self):
        presets = self.small.run("machines")["presets"]
        self.assertIn("h200-cluster", [p["name"] for p in presets])
        flags = ["plan", MODEL, "-b", "64", "--budget=200"]
        at_once = ["--machine=a100-cluster", "--search-num-nodes=2", "--search-num-workers=8"]
        reply = self.small.run(*flags, *at_once, f"--html={self.path('plan.html')}",
                               f"--export-strategy={self.path('a.json')}")
        self.assertEqual(reply["plan"]["machine"], "a100-cluster")
        self.assertEqual(len(reply["plan"]["devices"]), 16)
        with open(self.path("plan.html"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("NVIDIA A100", text)
        self.assertIn("<svg", text)
        self.assertNotIn("<script", text)

        # The same machine from a file, slower: another prediction.
        machine = json.loads(self.small.cli("machines", "a100-cluster", "--devices=16").stdout)
        machine["nodes"][1]["bandwidth"] = machine["nodes"][1]["flow_bandwidth"] = "1 GB/s"
        with open(self.path("machine.json"), "w") as file:
            json.dump(machine, file)
        from_file = [f"--machine-model-file={self.path('machine.json')}", "--only-data-parallel"]
        slow = self.small.run(*flags, *from_file, f"--export-strategy={self.path('b.json')}")
        fast = self.small.run(*flags, *at_once, "--only-data-parallel")
        self.assertGreater(slow["plan"]["prediction"]["step_seconds"],
                           2 * fast["plan"]["prediction"]["step_seconds"])
        same = self.small.cli("plan", "diff", self.path("a.json"), self.path("a.json")).stdout
        self.assertEqual(len(same.strip().splitlines()), 1, same)
        self.assertIn("step", self.small.cli("plan", "diff", self.path("a.json"), self.path("b.json")).stdout)

    def test_invalid_machines_and_plans_are_rejected_with_position(self):
        def refused(*words, machine=None, flags=()):
            if machine is not None:
                with open(self.path("bad.json"), "w") as file:
                    file.write(machine if isinstance(machine, str) else json.dumps(machine))
                flags = [f"--machine-model-file={self.path('bad.json')}"]
            with self.assertRaises(Failed) as caught:
                self.small.cli("plan", MODEL, *flags)
            for word in words:
                self.assertIn(word, caught.exception.err)

        good = json.loads(self.small.cli("machines", "cpu-ethernet", "--devices=2").stdout)
        refused("machine_file", machine="{")
        negative = json.loads(json.dumps(good))
        negative["devices"][0]["bandwidth"] = -1
        refused("bandwidth", "-1", machine=negative)
        away = json.loads(json.dumps(good))
        away["devices"][0]["parent"] = "nowhere"
        refused("nowhere", machine=away)
        refused("accepted", "h200-cluster", flags=["--machine=h2000"])
        refused("--machine", flags=["--search-num-nodes=2"])
        with self.assertRaises(Failed) as caught:
            self.small.cli("plan", "diff", "no-such-file", "no-such-job")
        self.assertIn("no-such-file", caught.exception.err)


if __name__ == "__main__":
    unittest.main()
