"""Checkpoints are copied to a second store while a job trains, and replayed from there when the first one lacks them."""
import glob
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import PROGRAMS  # noqa: E402
from spooled_runs import STEPS, SpoolCluster, checkpoints, named  # noqa: E402


def decompress(frame):
    return subprocess.run(["zstd", "-dc"], input=frame, check=True, capture_output=True).stdout


def unshuffle(copy):
    """As docs/reference/checkpoint-format.md has it."""
    magic, element, size = struct.unpack("<8sII", copy[:16])
    assert (magic, element) == (b"ESPSHUF1", 4)
    blocks = decompress(copy[16:])
    out = bytearray(blocks)
    for begin in range(0, len(blocks), size):
        elements = min(size, len(blocks) - begin) // 4
        for place in range(4):
            out[begin + place:begin + 4 * elements:4] = blocks[begin + place * elements:begin + (place + 1) * elements]
    return bytes(out)


class SpoolTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.spool = f"{self.folder}/copies"

    def cluster(self, **options):
        return self.enterContext(SpoolCluster(self.spool, **options))

    def record_and_thin(self, cluster, whole):
        """Records a run of this name, and 'lm', of which only the last two checkpoints stay; all are copied. The first one's job."""
        job = cluster.record(whole)
        cluster.record("lm", "--record-keep=2")
        for run in (whole, "lm"):
            cluster.wait_until_spooled(run, range(10, STEPS + 1, 10))
        cluster.wait(lambda: checkpoints(cluster, "lm")["stored"] == [STEPS - 10, STEPS], 20, "the limit is kept")
        return job

    def test_what_was_removed_is_replayed_from_its_copy(self):
        cluster = self.cluster(workers=2)
        kept = self.record_and_thin(cluster, "all")
        self.assertEqual(checkpoints(cluster, "all")["stored"], list(range(10, STEPS + 1, 10)))
        # Lists count both, and estimates say what will be copied back.
        counts = [cluster.run("runs", "lm")["runs"][0], cluster.run("runs", "get", "lm")]
        for run in counts:
            self.assertEqual((run["all_checkpoints"], run["job"]["recorded_checkpoints"], run["copied_checkpoints"]), (6, 2, 6))
            self.assertAlmostEqual(run["copied_bytes"] / run["job"]["recorded_bytes"], 3, delta=0.1)
        whole = counts[0]["copied_bytes"] // 6
        for flags, fetched in ((["--steps=25:38", "--workers=1"], 1), (["--at=checkpoints", "--log=norm(param(*))", "--steps=0:51"], 4),
                               (["--steps=52:55"], 0)):
            estimate = cluster.run("replay", "lm", *flags, "--estimate")
            self.assertEqual(estimate["fetched"],
                             [{"spool": self.spool, "checkpoints": fetched, "bytes": fetched * whole}] if fetched else [])
        self.assertIn("copies 1 checkpoint, ", cluster.cli("replay", "lm", "--steps=25:38", "--workers=1", "--estimate").stdout)
        # State, without workers; steps, from a copy on, to the bit; both like the run that has all its checkpoints.
        for flags in (["--at=checkpoints", "--log=norm(param(model.norm.weight))"],
                      ["--steps=25:38", "--log=norm(grad(model.norm.weight))"]):
            name = flags[-1].split("(", 1)[1].rstrip(")") + ")"
            rows, replay = cluster.replay("lm", *flags)
            self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
            expected, _ = cluster.replay("all", *flags)
            self.assertGreater(len(rows), 6)
            self.assertEqual(named(rows, name, "norm"), named(expected, name, "norm"))
            for segment in replay["segments"]:
                self.assertTrue(segment.get("comparison", {"bits": True})["bits"])
        # Nothing is left of what was read.
        self.assertEqual(glob.glob(f"{cluster.folder}/data/checkpoints/job-*/fetched/**/*.safetensors", recursive=True), [])
        self.assertIn(f"copy in {self.spool}", cluster.cli("runs", "get", "lm@1").stdout)
        metrics = cluster.get("/metrics")[1]
        self.assertIn("espalier_spooled_checkpoints_total 12", metrics)
        self.assertIn("espalier_spool_pending_checkpoints 0", metrics)
        # An original that is damaged is replaced by its copy.
        with open(glob.glob(f"{cluster.folder}/data/checkpoints/{kept}/attempt-1/step-20-*/rank-0.safetensors")[0], "r+b") as file:
            file.seek(5000)
            file.write(b"????")
        flags = ["--steps=22:28", "--log=norm(grad(model.norm.weight))"]
        rows, replay = cluster.replay("all", *flags)
        expected, _ = cluster.replay("lm", *flags)
        self.assertTrue(any("is damaged: " in note and f"its copy in {self.spool} has replaced it" in note for note in replay["notes"]), replay)
        self.assertEqual(replay["segments"][0]["checkpoint_step"], 20)
        self.assertEqual(named(rows, "grad(model.norm.weight)", "norm"), named(expected, "grad(model.norm.weight)", "norm"))
        self.assertIn(20, checkpoints(cluster, "all")["stored"])
        self.assertEqual(cluster.replay("all", *flags)[1].get("notes", []), [])
        # A copy that is damaged is named, and the checkpoint before it used.
        copies = sorted(glob.glob(f"{self.spool}/job-*/attempt-1/step-30-*/rank-0.safetensors*"))
        self.assertEqual(len(copies), 2)
        damaged = next(path for path in copies if f"/{kept}/" not in path)
        with open(damaged, "r+b") as file:
            file.seek(os.path.getsize(damaged) // 2)
            file.write(b"????")
        rows, replay = cluster.replay("lm", "--steps=32:38", "--log=norm(grad(model.norm.weight))")
        self.assertEqual((replay["state"], len(rows)), ("REPLAY_SUCCEEDED", 6), replay)
        self.assertTrue(any("step-30-attempt-1" in note for note in replay["notes"]), replay["notes"])
        # Nothing is promised of it any more.
        estimate = cluster.run("replay", "lm", "--at=checkpoints", "--log=norm(param(*))", "--steps=20:51", "--estimate")
        self.assertEqual(estimate["fetched"][0]["checkpoints"], 2)
        self.assertEqual(cluster.run("runs", "lm")["runs"][0]["all_checkpoints"], 5)
        self.assertIn(f"damaged or lost copy in {self.spool}", cluster.cli("runs", "get", "lm").stdout)
        # If both are damaged, both are named, and what is sound of the original stays.
        original = glob.glob(f"{cluster.folder}/data/checkpoints/{kept}/attempt-1/step-30-*")[0]
        for path in (f"{original}/rank-0.safetensors", *(path for path in copies if path != damaged)):
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                file.write(b"????")
        content = {file.name: file.read_bytes() for file in pathlib.Path(original).iterdir()}
        rows, replay = cluster.replay("all", "--steps=32:38", "--log=norm(grad(model.norm.weight))")
        self.assertEqual((replay["state"], len(rows)), ("REPLAY_SUCCEEDED", 6), replay)
        self.assertTrue(any(f"its copy in {self.spool} is damaged, too: " in note and "from step 20 instead" in note
                            for note in replay["notes"]), replay["notes"])
        self.assertEqual({file.name: file.read_bytes() for file in pathlib.Path(original).iterdir()}, content)
        # What a limit removes is said, although the copies stay.
        limited = cluster.record("limited", f"--record-bytes={4 * whole}")
        cluster.wait_until_spooled("limited", range(10, STEPS + 1, 10))
        cluster.wait(lambda: any("checkpoints were removed" in message and f"their copies stay in {self.spool}" in message
                                 for message in cluster.job(limited)[2]), 20, "the log says what was removed")
        self.assertRegex(cluster.cli("runs", "get", "limited").stdout, r"copies: 6, [0-9.]+ \w+ uncompressed")
        # Without the spool, an estimate says what is out of reach.
        cluster.daemon_flags.remove(f"--spool={self.spool}")
        cluster.kill(cluster.daemon)
        cluster.start_daemon()
        self.assertEqual(cluster.run("runs", "lm")["runs"][0]["all_checkpoints"], 6)
        estimate = cluster.run("replay", "lm", "--at=checkpoints", "--log=norm(param(*))", "--steps=20:51", "--estimate")
        self.assertEqual((estimate["fetched"], int(estimate["logged_steps"])), ([], 1))
        self.assertEqual([segment["checkpoints"] for segment in estimate["segments"]], [1])
        self.assertIn(f"lm@1: the checkpoints of steps 20, 30, 40 are in {self.spool} only, which is not used now: start espalierd "
                      f"with --spool={self.spool}", estimate["notes"])
        cluster.daemon_flags.append(f"--spool={self.spool}")
        cluster.kill(cluster.daemon)
        cluster.start_daemon()
        # A deleted job's copies go.
        other = next(name for name in os.listdir(self.spool) if name not in (kept, ".espalier-owner"))
        cluster.cli("jobs", "delete", other)
        cluster.wait(lambda: not os.path.exists(f"{self.spool}/{other}"), 20, "the copies are removed")
        self.assertFalse(os.path.exists(f"{cluster.folder}/data/checkpoints/{other}"))
        self.assertTrue(os.path.exists(f"{self.spool}/{kept}"))

    def test_values_that_do_not_change_are_copied_once(self):
        cluster = self.cluster(workers=1)
        frozen = ["--freeze=model.embed_tokens.*", "--freeze=model.layers.*"]
        cluster.record("all", *frozen)
        job = cluster.record("lm", "--record-keep=2", *frozen)
        cluster.wait_until_spooled("lm", range(10, STEPS + 1, 10))
        cluster.wait(lambda: checkpoints(cluster, "lm")["stored"] == [STEPS - 10, STEPS], 20, "the limit is kept")
        self.assertEqual(len(glob.glob(f"{self.spool}/{job}/attempt-1/unchanged-rank-0.safetensors*")), 1)
        copies = glob.glob(f"{self.spool}/{job}/attempt-1/*/rank-0.safetensors*")
        shared, = glob.glob(f"{self.spool}/{job}/attempt-1/unchanged*")
        self.assertLess(max(map(os.path.getsize, copies)), os.path.getsize(shared))
        flags = ["--steps=15:18", "--log=norm(param(model.layers.0.self_attn.q_proj.weight))", "--log=norm(grad(lm_head.weight))"]
        rows, replay = cluster.replay("lm", *flags)
        expected, _ = cluster.replay("all", *flags)
        self.assertEqual((replay["state"], len(rows)), ("REPLAY_SUCCEEDED", 6), replay)
        for name in ("param(model.layers.0.self_attn.q_proj.weight)", "grad(lm_head.weight)"):
            self.assertEqual(named(rows, name, "norm"), named(expected, name, "norm"))

    def stopped_within_a_copy(self, cluster, job):
        """Stops the coordinator while a shuffled copy is incomplete, if it comes to that within some seconds."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if not glob.glob(f"{self.spool}/{job}/*/*/*.shuffled*.tmp"):
                continue
            cluster.daemon.send_signal(signal.SIGSTOP)
            if glob.glob(f"{self.spool}/{job}/*/*/*.shuffled*.tmp"):
                return True
            cluster.daemon.send_signal(signal.SIGCONT)
        return False

    def test_a_killed_coordinator_goes_on_copying(self):
        cluster = self.cluster(workers=1)
        job = cluster.submit("lm", "--record=every:5", steps=200)
        cluster.wait(lambda: glob.glob(f"{self.spool}/{job}/attempt-1/*/manifest.json"), 60, "one is copied")
        interrupted = 0
        for _ in range(3):
            interrupted += self.stopped_within_a_copy(cluster, job)
            cluster.daemon.send_signal(signal.SIGKILL)
            cluster.daemon.wait()
            cluster.start_daemon()
            time.sleep(0.7)
        self.assertGreater(interrupted, 0)
        self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
        wanted = checkpoints(cluster, "lm")["stored"]
        self.assertGreater(len(wanted), 20)
        cluster.wait_until_spooled("lm", wanted)
        # Copies are the same bytes. Those of checkpoints that the job went back behind may be more than the originals.
        compared = shuffled = 0
        for copy in glob.glob(f"{self.spool}/{job}/*/*/*"):
            original = copy.replace(self.spool, f"{cluster.folder}/data/checkpoints").removesuffix(".zst").removesuffix(".shuffled")
            if not os.path.exists(os.path.join(os.path.dirname(original), "manifest.json")):
                continue
            with open(original, "rb") as file:
                content = file.read()
            with open(copy, "rb") as file:
                found = file.read()
            if copy.endswith(".zst"):
                found = decompress(found)
            elif copy.endswith(".shuffled"):
                found = unshuffle(found)
                shuffled += 1
            self.assertTrue(found == content, copy)
            compared += 1
        self.assertEqual(compared, 2 * len(wanted))
        self.assertGreater(shuffled, 0)

    def test_a_job_goes_on_from_the_copy_of_a_damaged_checkpoint(self):
        cluster = self.cluster(workers=1)
        steps = 10 * STEPS  # so many that it is not over before the worker is stopped
        undisturbed = cluster.record("all", steps=steps)
        for damage in (os.remove, lambda path: os.truncate(path, 5000)):
            job = cluster.submit("lm", steps=steps)
            cluster.wait_for_step(job, 25)
            cluster.workers[0].send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            cluster.wait(lambda: len(glob.glob(f"{self.spool}/{job}/*/*/manifest.json"))
                         == len(glob.glob(f"{cluster.folder}/data/checkpoints/{job}/*/*/manifest.json")), 20, "all are copied")
            cluster.kill(cluster.daemon)
            newest = int(max(os.listdir(f"{self.spool}/{job}/attempt-1"), key=lambda name: int(name.split("-")[1])).split("-")[1])
            self.assertLess(newest, steps)
            damage(f"{cluster.folder}/data/checkpoints/{job}/attempt-1/step-{newest}-attempt-1/rank-0.safetensors")
            cluster.workers[0].send_signal(signal.SIGCONT)
            cluster.start_daemon()
            self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
            self.assertEqual(cluster.losses(job), cluster.losses(undisturbed))
            messages = " ".join(cluster.job(job)[2])
            self.assertIn(f"its copy in {self.spool} has replaced it; going back to step {newest}", messages)

    def test_a_spool_that_is_away_is_said_and_does_not_stop_the_training(self):
        cluster = self.cluster(workers=1)
        os.rename(self.spool, f"{self.folder}/unmounted")
        job = cluster.record("lm")
        _, _, messages = cluster.job(job)
        said = [message for message in messages if "checkpoints cannot be copied to" in message]
        self.assertEqual(len(said), 1, messages)
        self.assertIn("is its disk mounted?", said[0])
        self.assertFalse(os.path.exists(self.spool))
        self.assertEqual(checkpoints(cluster, "lm")["spooled"], [])
        os.rename(f"{self.folder}/unmounted", self.spool)
        cluster.wait_until_spooled("lm", range(10, STEPS + 1, 10), seconds=90)
        cluster.wait(lambda: any("are copied to" in message for message in cluster.job(job)[2]), 20, "it says so")

    def test_a_spool_that_is_away_at_the_start_is_waited_for(self):
        """Neither is its folder made anew, as on the disk beneath a mount, nor does a replay need it that can do without."""
        cluster = self.cluster(workers=1)
        deleted = self.record_and_thin(cluster, "gone")
        cluster.kill(cluster.daemon)
        os.rename(self.spool, f"{self.folder}/unmounted")
        os.mkdir(self.spool)
        cluster.start_daemon()
        cluster.wait_for_workers(1)
        cluster.cli("jobs", "delete", deleted)
        rows, replay = cluster.replay("lm", "--steps=25:28", "--log=norm(grad(model.norm.weight))")
        self.assertEqual((replay["state"], len(rows)), ("REPLAY_SUCCEEDED", 3), replay)
        self.assertIn("step 20 cannot be read", replay["notes"][0])
        self.assertIn("from step 0 instead", replay["notes"][-1])
        asked = ["--at=checkpoints", "--log=norm(param(model.norm.weight))"]
        rows, _ = cluster.replay("lm", *asked)
        self.assertEqual(sorted(row["step"] for row in rows), [0, STEPS - 10, STEPS])
        rows, replay = cluster.replay("lm", *asked, "--steps=10:31")
        self.assertEqual((replay["state"], rows), ("REPLAY_FAILED", []), replay)
        self.assertEqual(os.listdir(self.spool), [])
        os.rmdir(self.spool)
        os.rename(f"{self.folder}/unmounted", self.spool)
        cluster.wait(lambda: not os.path.exists(f"{self.spool}/{deleted}"), 90, "the deleted job's copies are removed")
        rows, replay = cluster.replay("lm", *asked, "--steps=10:31")
        self.assertEqual((replay["state"], len(rows)), ("REPLAY_SUCCEEDED", 3), replay)

    def test_places_that_cannot_be_spools_are_refused(self):
        self.cluster(workers=0)

        def refused(data, spool):
            done = subprocess.run([os.path.abspath(PROGRAMS["espalierd"]), "--listen=127.0.0.1:0", "--http-listen=",
                                   f"--data-dir={data}", f"--spool={spool}"], capture_output=True, text=True, timeout=60,
                                  cwd=self.folder)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr

        self.assertIn("another coordinator's jobs", refused(f"{self.folder}/other", self.spool))
        for inside in ("", "/checkpoints", "/checkpoints/copies"):
            self.assertIn("where the originals are", refused(f"{self.folder}/data", f"{self.folder}/data{inside}"))
        self.assertIn("where the originals are", refused(f"{self.folder}/data", f"{self.folder}/."))
        self.assertIn("where the originals are", refused("data", "data/new/copies"))
        self.assertIn("must be writable", refused(f"{self.folder}/third", "/proc/copies"))


if __name__ == "__main__":
    unittest.main()
