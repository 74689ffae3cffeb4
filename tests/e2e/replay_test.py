"""Replays of recorded runs: on any number of workers, with the recorded bits, through faults, and of what was changed."""
import json
import math
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, PROGRAMS, ROOT, Cluster, Failed  # noqa: E402

PROGRAMS["faulty-worker"] = os.path.join(ROOT, "tests", "e2e", "faulty-worker")

MODEL = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "--sequence-length=32",
         "-b", "16", "--lr=3e-3", "--seed=5"]
STEPS = 60


class ReplayCluster(Cluster):
    """One whose dataset a test may change."""

    def __init__(self, **options):
        self.sets = tempfile.mkdtemp(prefix="espalier-sets-")
        super().__init__(lease=5, daemon_flags=[f"--dataset-root={self.sets}"],
                         worker_flags=[f"--dataset-root={self.sets}"], **options)
        self.text = os.path.join(self.sets, "data.txt")  # --no-upload reads it where it is
        shutil.copy(os.path.join(DATA, "genesis.txt"), self.text)

    def close(self):
        super().close()
        shutil.rmtree(self.sets, ignore_errors=True)

    def record(self, name, *flags, steps=STEPS):
        if not any(flag.startswith("--record") for flag in flags):
            flags = (*flags, "--record=every:10")
        job = self.train(*MODEL, "-d", self.text, "--no-upload", f"--steps={steps}", f"--name={name}", *flags)
        done = self.wait_for_job(job)
        assert done["state"].upper() == "SUCCEEDED", done
        return job

    def replay(self, run, *flags):
        """The answers, and the replay when it is over."""
        done = self.cli("replay", run, *flags, "--json", check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        replays = [line["replay"] for line in lines if isinstance(line.get("replay"), dict)]
        if not replays:
            raise Failed(done.returncode, done.stdout, done.stderr)
        return [line for line in lines if "step" in line], replays[0]

    def query(self, run, *flags):
        return [json.loads(line) for line in self.cli("history", run, *flags, "--json").stdout.splitlines()]


def compared(replay):
    return sum(segment["comparison"]["compared"] for segment in replay["segments"] if "comparison" in segment)


def progress(replay):
    """Steps that are trained again so far, and in all."""
    return (sum(segment.get("steps_done", 0) for segment in replay["segments"]),
            sum(segment["end_step"] - segment["checkpoint_step"] for segment in replay["segments"]))


def to_the_bit(replay):
    return all(segment["comparison"]["bits"] for segment in replay["segments"])


def named(rows, name, reduction):
    return {row["step"]: row["value"] for row in rows if (row["name"], row["reduction"]) == (name, reduction)}


class ReplayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = ReplayCluster(workers=2)
        cls.addClassCleanup(cls.cluster.close)
        cls.job = cls.cluster.record("lm", "--max-devices=1")
        cls.cluster.record("two", "--only-data-parallel", "--holdout=0.1")
        cls.cluster.record("none", "--record=off", steps=5)

    def test_a_part_of_a_run_is_replayed_with_its_bits(self):
        rows, replay = self.cluster.replay("lm", "--steps=25:40", "--log=loss", "--log=norm(grad(model.norm.weight))",
                                           "--log=norm(param(model.norm.weight))",
                                           "--log=norm(update(model.norm.weight))")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        self.assertEqual(compared(replay), 20)  # from the checkpoint of step 20 on
        self.assertTrue(to_the_bit(replay))
        recorded = self.cluster.losses(self.job)
        losses = named(rows, "loss", "full")
        self.assertEqual(sorted(losses), list(range(25, 40)))
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, recorded[step], delta=1e-6 * recorded[step])
        self.assertEqual(len(rows), 4 * 15)

    def test_workers_share_the_steps_and_every_answer_comes_once(self):
        rows, replay = self.cluster.replay("lm", "--log=norm(grad(model.norm.weight))")
        self.assertEqual(len(replay["segments"]), 2)
        self.assertEqual({segment["state"] for segment in replay["segments"]}, {"REPLAY_SUCCEEDED"})
        self.assertEqual((compared(replay), to_the_bit(replay)), (STEPS, True))
        self.assertEqual(sorted(row["step"] for row in rows), list(range(STEPS)))
        one, _ = self.cluster.replay("lm", "--log=norm(grad(model.norm.weight))", "--workers=1")
        self.assertEqual(named(rows, "grad(model.norm.weight)", "norm"), named(one, "grad(model.norm.weight)", "norm"))

    def test_a_run_on_several_ranks_has_its_bits_on_as_many(self):
        rows, replay = self.cluster.replay("two", "--log=mean(grad(*))", "--steps=33:40", "--every=3")
        self.assertEqual((replay["state"], compared(replay), to_the_bit(replay)), ("REPLAY_SUCCEEDED", 10, True))
        self.assertEqual({row["step"] for row in rows}, {33, 36, 39})

    def test_values_that_rewrites_removed_are_computed_again(self):
        """Fusion made silu(gate) * up one operator: no program has the silu."""
        _, _, messages = self.cluster.job(self.job)
        self.assertTrue(any("fused: " in message and "swiglu" in message for message in messages), messages)
        names = ["layers.1.silu", "layers.1.mlp.gate_proj", "layers.1.mlp.up_proj", "layers.1.multiply"]
        kept = [*(f"--log={name}" for name in names[1:]), "--log=loss", "--steps=35:38"]
        for run in ("lm", "two"):
            rows, replay = self.cluster.replay(run, f"--log={names[0]}", "--log=norm(layers.*.silu)", *kept)
            self.assertEqual((replay["state"], to_the_bit(replay)), ("REPLAY_SUCCEEDED", True), replay)
            self.assertEqual(len(rows), 7 * 3)
            self.assertIn(f"{run}@1: 'layers.0.silu', 'layers.1.silu' are computed again beside the program: rewrites removed "
                          "them from the plan", replay["notes"])
            answers = {name: named(rows, name, "full") for name in names}
            norms = named(rows, names[0], "norm")
            for step in range(35, 38):
                silu, gate, up, product = (answers[name][step]["values"] for name in names)
                self.assertEqual({key: answers[names[0]][step][key] for key in ("dtype", "dims")},
                                 {"dtype": "f32", "dims": [16, 32, 128]})
                self.assertGreater(max(map(abs, silu)), 0.1)
                for s, g, u, p in zip(silu, gate, up, product, strict=True):
                    self.assertAlmostEqual(s, g / (1 + math.exp(-g)), delta=1e-4)
                    self.assertAlmostEqual(s * u, p, delta=1e-4)  # of the fused operator
                self.assertAlmostEqual(norms[step], math.sqrt(sum(s * s for s in silu)), delta=1e-4 * norms[step])
            # What the programs have keeps its bits.
            alone, _ = self.cluster.replay(run, *kept)
            for name in (*names[1:], "loss"):
                self.assertEqual(named(rows, name, "full"), named(alone, name, "full"))
            estimate = self.cluster.run("replay", run, "--estimate", f"--log={names[0]}", "--log=norm(layers.*.silu)", *kept)
            self.assertEqual((estimate["rows"], estimate["lacking"]), (len(rows), []))
            self.assertGreater(estimate["bytes"], 3 * 4 * 4 * 16 * 32 * 128)

    def test_parts_of_the_steps_make_up_all_of_them(self):
        steps = []
        for part in ("1/3", "2/3", "3/3"):
            rows, _ = self.cluster.replay("lm", "--log=norm(grad(model.norm.weight))", f"--segment={part}")
            steps += [row["step"] for row in rows]
        self.assertEqual(sorted(steps), list(range(STEPS)))

    def test_what_was_answered_stays_beside_what_was_recorded(self):
        before = self.cluster.query("lm", "--source=forward")
        rows, replay = self.cluster.replay("lm", "--log=max(param(model.norm.weight))", "--steps=50:55")
        after = self.cluster.query("lm")
        self.assertEqual([row for row in after if row["source"] == "forward"], before)
        kept = [row for row in after if row.get("replay") == replay["id"]]
        self.assertEqual([row["value"] for row in kept], [row["value"] for row in rows])
        listed = self.cluster.run("replay", "list", "lm")["replays"]
        self.assertEqual(listed[0]["id"], replay["id"])

    def test_a_replay_is_shown_and_deleted_with_its_answers(self):
        rows, replay = self.cluster.replay("lm", "--log=std(grad(model.norm.weight))", "--steps=12:30")
        shown = self.cluster.run("replay", "get", replay["id"])
        self.assertEqual((shown["runs"], shown["job_ids"], shown["rows"]), (["lm@1"], [self.job], len(rows)))
        text = self.cluster.cli("replay", "get", replay["id"]).stdout
        for says in (f"{replay['id']} of lm@1: succeeded, 20 of 20 steps, 18 answers", "std(grad(model.norm.weight)); steps 12:30",
                     "losses that equal the recorded ones to the bit: 20"):
            self.assertIn(says, text)
        self.assertIn(f"{replay['id']}  lm@1 ", self.cluster.cli("replay", "list").stdout)
        self.assertEqual(len(self.cluster.query("lm", "--log=std(*)")), len(rows))
        self.cluster.cli("replay", "delete", replay["id"])
        self.assertEqual(self.cluster.query("lm", "--log=std(*)"), [])
        self.assertGreater(len(self.cluster.query("lm", "--source=forward")), 0)
        for verb in ("get", "watch", "cancel", "delete"):
            done = self.cluster.cli("replay", verb, replay["id"], check=False)
            self.assertEqual((done.returncode, f"no replay '{replay['id']}'" in done.stderr), (4, True), done.stderr)

    def test_what_cannot_be_asked_says_why(self):
        for flags, says in [
            (["--log=grad(model.norm.weigt)"], "model.norm.weight"),
            (["--log=nrm(model.norm.weight)"], "norm"),
            (["--steps=50:70"], "0 to 59"),
            (["--segment=4/3"], "from 1 to 3"),
            (["--at=checkpoints", "--log=grad(model.norm.weight)"], "without --at=checkpoints"),
            (["--at=checkpoints", "--log=std(norm)"], "--evaluate"),
            (["--at=checkpoints", "--evaluate=holdout", "--log=std(nrm)", "--log=norm(param(*))"], "norm"),
        ]:
            with self.subTest(flags), self.assertRaises(Failed) as failed:
                self.cluster.replay("lm", *flags)
            self.assertIn(says, failed.exception.err)
        with self.assertRaises(Failed) as failed:
            self.cluster.replay("two", "--workers=1")
        self.assertIn("2 workers", failed.exception.err)

    def test_a_run_without_recording_is_refused(self):
        with self.assertRaises(Failed) as failed:
            self.cluster.replay("none")
        self.assertIn("has no recording", failed.exception.err)

    def test_checkpoints_answer_what_a_replay_answers_without_training(self):
        for run in ("lm", "two"):
            log = ["--log=norm(param(*))", "--log=mean(state(model.norm.weight, adam_v))"]
            read, replay = self.cluster.replay(run, "--at=checkpoints", *log, "--steps=0:51")
            self.assertEqual((replay["state"], {segment["kind"] for segment in replay["segments"]}), ("REPLAY_SUCCEEDED", {"STATE"}))
            trained, _ = self.cluster.replay(run, *log, "--every=10", "--steps=0:51")
            values = [{(row["step"], row["name"], row["reduction"]): row["value"] for row in rows} for rows in (read, trained)]
            self.assertEqual(values[0], values[1])
            self.assertEqual({row["step"] for row in read}, set(range(0, 60, 10)))

    def test_evaluations_of_checkpoints_end_with_that_of_the_job(self):
        rows, replay = self.cluster.replay("two", "--at=checkpoints", "--evaluate=holdout", "--log=std(norm)",
                                           "--steps=30:61")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        losses = {row["step"]: row["value"] for row in rows if row["name"] == "evaluation.loss"}
        self.assertEqual(sorted(losses), [30, 40, 50, 60])
        self.assertEqual(losses[60], self.cluster.job("two")[0]["evaluation"]["loss"])
        self.assertGreater(losses[30], losses[60])
        self.assertEqual(len([row for row in rows if row["reduction"] == "std"]), 4)

    def test_names_that_a_version_lacks_are_listed(self):
        small = [MODEL[0].replace("layers=2", "layers=1"), *MODEL[1:]]
        job = self.cluster.train(*small, "-d", self.cluster.text, "--no-upload", "--steps=20", "--record=every:10", "--name=small")
        self.cluster.wait_for_job(job)
        weight = "model.layers.1.input_layernorm.weight"
        rows, replay = self.cluster.replay("*", "--steps=0:5", f"--log=norm(grad({weight}))")
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED")
        lacks = f"small@1 has no norm(grad({weight})): there is no gradient of '{weight}'; there are: "
        self.assertTrue(any(note.startswith(lacks) for note in replay["notes"]), replay["notes"])
        self.assertTrue(any(note.startswith("none@1 has no recording") for note in replay["notes"]), replay["notes"])
        self.assertEqual({row["experiment"] for row in rows}, {"lm", "two"})
        estimate = self.cluster.cli("replay", "*", "--steps=0:5", f"--log=norm(grad({weight}))", "--estimate").stdout
        self.assertIn(lacks, estimate)


class FaultTest(unittest.TestCase):
    def cluster(self, **options):
        cluster = self.enterContext(ReplayCluster(**options))
        self.job = cluster.record("lm", "--max-devices=1")
        return cluster

    def test_a_worker_that_is_killed_is_replaced(self):
        cluster = self.cluster(workers=2)
        cluster.record("long", "--max-devices=1", "--record=every:100", steps=1000)
        started = cluster.run("replay", "long", "--log=norm(grad(model.norm.weight))", "--workers=1", "--detach")
        cluster.wait(lambda: cluster.run("replay", "list")["replays"][0]["rows"] > 0, 60, "answers come")
        before = cluster.run("replay", "list")["replays"][0]
        at_work = before["segments"][0]["workers"]
        self.assertEqual(len(at_work), 1)
        for worker in cluster.run("status")["workers"]:
            if worker["worker_id"] in at_work:
                cluster.kill(cluster.workers[int(worker["name"][1:])])
        cluster.wait(lambda: any("goes on from step" in note for note in cluster.run("replay", "list")["replays"][0]["notes"]),
                     60, "it goes on")
        # What was done counts, and once.
        done, total = progress(cluster.run("replay", "list")["replays"][0])
        self.assertGreaterEqual(done, progress(before)[0])
        self.assertEqual(total, 1000)
        lines = cluster.cli("replay", "watch", started["id"], "--json").stdout.splitlines()
        replay = json.loads(lines[-1])["replay"]
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        self.assertEqual((progress(replay), compared(replay), to_the_bit(replay)), ((1000, 1000), 1000, True))
        self.assertEqual(sorted(json.loads(line)["step"] for line in lines[:-1]), list(range(1000)))

    def test_a_replay_survives_the_coordinator(self):
        cluster = self.cluster(workers=1)
        cluster.record("long", "--record=every:100", steps=1000)
        started = cluster.run("replay", "long", "--log=norm(grad(model.norm.weight))", "--detach")
        cluster.wait(lambda: cluster.run("replay", "list")["replays"][0]["rows"] > 0, 60, "answers come")
        before = cluster.query("long", "--source=replay")
        cluster.kill(cluster.daemon)
        cluster.start_daemon()
        done, total = progress(cluster.run("replay", "list")["replays"][0])
        self.assertGreaterEqual(done, len(before))
        self.assertEqual(total, 1000)
        lines = cluster.cli("replay", "watch", started["id"], "--json").stdout.splitlines()
        replay = json.loads(lines[-1])["replay"]
        self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
        self.assertEqual((progress(replay), compared(replay), to_the_bit(replay)), ((1000, 1000), 1000, True))
        rows = [json.loads(line) for line in lines[:-1]]
        self.assertEqual(sorted(row["step"] for row in rows), list(range(1000)))
        self.assertEqual(rows[:len(before)], before)

    def test_a_job_that_went_back_counts_its_steps_once(self):
        cluster = self.enterContext(ReplayCluster(workers=2))
        steps, every = 1200, 150
        job = cluster.train(*MODEL, "-d", cluster.text, "--no-upload", "--max-devices=1", f"--steps={steps}",
                            f"--record=every:{every}", "--name=lm")
        cluster.wait_for_step(job, every + 20)
        at_work = next(worker for worker in cluster.run("status")["workers"] if worker["state"].upper() == "BUSY")
        cluster.kill(cluster.workers[int(at_work["name"][1:])])
        seen = []  # of both lists

        def over():
            runs, jobs = cluster.run("runs", "lm")["runs"][0]["job"], cluster.run("jobs", "list")["jobs"][0]
            seen.extend((record["steps_done"], record["total_steps"]) for record in (runs, jobs))
            return runs["state"].upper() == "SUCCEEDED"

        cluster.wait(over, 120, "the job is over")
        self.assertEqual({total for _, total in seen}, {steps})
        self.assertEqual(max(done for done, _ in seen), steps)
        run = cluster.run("runs", "get", "lm")
        first, border = (attempt["first_step"] for attempt in run["attempts"])
        self.assertEqual((first, border % every), (0, 0))
        self.assertIn(f"going back to step {border}", "\n".join(cluster.job(job)[2]))
        self.assertEqual((run["job"]["steps_done"], run["all_checkpoints"], len(run["checkpoints"])),
                         (steps, steps // every, steps // every))
        losses = cluster.query("lm", "--log=loss")
        self.assertEqual([row["step"] for row in losses], list(range(steps)))
        self.assertEqual(run["losses"]["last"], losses[-1]["value"])
        self.assertIn(f", {steps} of {steps} steps done\n", cluster.cli("runs", "get", "lm").stdout)
        _, replay = cluster.replay("lm", "--workers=1")
        self.assertEqual((replay["state"], progress(replay), compared(replay)),
                         ("REPLAY_SUCCEEDED", (steps, steps), steps), replay)

    def test_a_coordinator_that_is_killed_leaves_no_part_of_a_deleted_replay(self):
        cluster = self.cluster(workers=1)
        replays = [cluster.run("replay", "lm", "--at=checkpoints", "--log=norm(param(*))", "--log=mean(param(*))", f"--steps={step}:61",
                               "--detach")["id"] for step in range(24)]
        cluster.wait(lambda: all(replay["state"] == "REPLAY_SUCCEEDED" for replay in cluster.run("replay", "list")["replays"]), 60,
                     "they are answered")

        def answers():
            count = {}
            for row in cluster.query("lm", "--source=replay"):
                count[row["replay"]] = count.get(row["replay"], 0) + 1
            return count

        whole = answers()
        self.assertEqual(sorted(whole), sorted(replays))
        folder = os.path.join(cluster.folder, "data", "checkpoints", "replays", self.job)
        self.assertEqual(sorted(os.listdir(folder)), sorted(replays))
        left = replays
        for deleted in (1, 5):
            command = subprocess.Popen([PROGRAMS["espalier"], "replay", "delete", *left, f"--coordinator={cluster.grpc}"],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            gone = [command.stdout.readline().split()[0] for _ in range(deleted)]
            cluster.kill(cluster.daemon)
            command.kill()
            command.communicate()
            cluster.start_daemon()
            left = [replay["id"] for replay in cluster.run("replay", "list")["replays"]]
            self.assertFalse(set(gone) & set(left), "what was said to be deleted is")
            self.assertGreater(len(left), 0)
            self.assertEqual(answers(), {replay: whole[replay] for replay in left})
            self.assertEqual(sorted(os.listdir(folder)), sorted(left))
        cluster.cli("replay", "delete", *left)
        self.assertEqual((cluster.run("replay", "list")["replays"], answers()), ([], {}))
        self.assertEqual(cluster.cli("replay", "get", replays[0], check=False).returncode, 4)

    def test_another_dataset_is_named(self):
        cluster = self.cluster(workers=1)
        with open(cluster.text, "r+b") as file:
            file.seek(1000)
            file.write(b"X")
        _, replay = cluster.replay("lm", "--steps=0:10")
        self.assertEqual(replay["state"], "REPLAY_FAILED")
        self.assertIn("lm@1: dataset: ", replay["error"])

    def test_a_flipped_bit_in_a_checkpoint_is_named_and_an_earlier_one_is_used(self):
        cluster = self.cluster(workers=1)
        folder = os.path.join(cluster.folder, "data", "checkpoints", self.job)
        [path] = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names
                  if "step-30-" in at and name.endswith(".safetensors")]
        with open(path, "r+b") as file:
            file.seek(-5, os.SEEK_END)
            byte = file.read(1)
            file.seek(-5, os.SEEK_END)
            file.write(bytes([byte[0] ^ 4]))
        rows, replay = cluster.replay("lm", "--steps=35:45", "--log=norm(grad(model.norm.weight))")
        self.assertEqual((replay["state"], to_the_bit(replay)), ("REPLAY_SUCCEEDED", True), replay)
        self.assertEqual([row["step"] for row in rows], list(range(35, 45)))
        [note] = [note for note in replay["notes"] if "damaged" in note]
        self.assertIn("checkpoint of step 30", note)
        self.assertIn(os.path.basename(path), note)
        self.assertIn("from step 20", note)
        # Nor does it answer by itself; the others do, also without any worker.
        cluster.kill(cluster.workers[0])
        rows, replay = cluster.replay("lm", "--at=checkpoints", "--log=norm(param(model.norm.weight))")
        self.assertEqual([row["step"] for row in rows], [0, 10, 20, 40, 50, 60])
        self.assertTrue(any("checkpoint of step 30 is damaged" in note for note in replay["notes"]), replay)

    def test_a_loss_that_differs_by_a_bit_stops_the_replay_at_its_step(self):
        cluster = self.cluster(workers=1)
        recorded = cluster.losses(self.job)[37]
        cluster.daemon.send_signal(signal.SIGTERM)
        cluster.daemon.wait()
        store = sqlite3.connect(os.path.join(cluster.folder, "data", "espalier.db"))
        [(sequence, body)] = store.execute("SELECT sequence, body FROM log WHERE step = 37").fetchall()
        loss = struct.pack("<d", recorded)
        self.assertEqual(body.count(loss), 1)
        other = struct.pack("<q", struct.unpack("<q", loss)[0] ^ 1)
        store.execute("UPDATE log SET body = ? WHERE sequence = ?", (body.replace(loss, other), sequence))
        store.commit()
        store.close()
        cluster.start_daemon()
        cluster.wait_for_workers(1)
        rows, replay = cluster.replay("lm", "--log=norm(grad(model.norm.weight))", "--steps=30:50")
        self.assertEqual(replay["state"], "REPLAY_DIFFERS", replay)
        self.assertEqual(replay["difference"]["step"], 37)
        self.assertEqual(replay["difference"]["replayed"], recorded)
        self.assertEqual([row["step"] for row in rows], list(range(30, 37)))
        done = cluster.cli("replay", "lm", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("at step 37", done.stderr)

    def test_a_wrong_kernel_is_found_with_its_step_operator_and_worker(self):
        cluster = self.cluster(workers=1)
        cluster.start_worker()
        cluster.wait_for_workers(2)
        cluster.kill(cluster.workers[0])
        with mock.patch.dict(os.environ, {"ESPALIER_TEST_FAULT": "residual_rms_norm_grad 17"}):
            cluster.workers[0] = cluster.spawn("faulty-worker", f"--coordinator={cluster.grpc}", "--name=faulty", "--threads=1",
                                               f"--cache-dir={cluster.folder}/cache-faulty", *cluster.worker_flags)
        cluster.wait(lambda: {w["name"] for w in cluster.run("status")["workers"] if w["state"].upper() == "IDLE"} == {"w1", "faulty"},
                     20, "the faulty worker has joined")
        # Each of the workers trains a half of the steps.
        _, replay = cluster.replay("lm")
        self.assertEqual(replay["state"], "REPLAY_DIFFERS", replay)
        difference = replay["difference"]
        # An ulp shows in the loss some steps later.
        self.assertIn(difference["node_step"], (17, 30), difference)
        self.assertGreaterEqual(difference["step"], difference["node_step"])
        self.assertIn("norm", difference["node"])
        self.assertIn("residual_rms_norm_grad", difference["cause"])
        self.assertRegex(difference["cause"], r"worker w\d+ \(w1\) repeats the recording, worker w\d+ \(faulty\) does not")

    def test_other_workers_replay_by_another_plan_within_a_tolerance(self):
        cluster = self.enterContext(ReplayCluster(workers=2))
        cluster.record("two", "--only-data-parallel")
        cluster.kill(cluster.workers[1])
        cluster.wait(lambda: sum(w["state"].upper() == "IDLE" for w in cluster.run("status")["workers"]) == 1, 20,
                     "the other worker is missed")
        waiting = cluster.run("replay", "two", "--steps=0:20", "--detach")
        cluster.wait(lambda: any("--any-plan" in note for note in cluster.run("replay", "list")["replays"][0]["notes"]),
                     20, "it says what it waits for")
        self.assertEqual(cluster.run("replay", "cancel", waiting["id"])["state"], "REPLAY_CANCELLED")
        rows, replay = cluster.replay("two", "--any-plan", "--log=norm(grad(model.norm.weight))", "--steps=0:20")
        self.assertEqual((replay["state"], compared(replay)), ("REPLAY_SUCCEEDED", 20), replay)
        comparison = replay["segments"][0]["comparison"]
        self.assertFalse(comparison["bits"])
        self.assertIn("2 ranks, the replay of 1", comparison["reason"])
        self.assertLess(comparison["largest"], comparison["tolerance"])
        self.assertEqual(len(rows), 20)


if __name__ == "__main__":
    unittest.main()
