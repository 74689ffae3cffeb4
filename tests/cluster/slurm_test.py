"""Batch jobs on SLURM: what `espalier slurm script` prints runs as it is, ends with its training's exit code, goes on after
a requeue as if nothing had happened, and leaves nothing behind."""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
from cluster import DATA, PROGRAMS, read  # noqa: E402
from pages import PAGES, commands  # noqa: E402
from slurm import Slurm, enter  # noqa: E402

REASON = enter()
STEPS = 1500  # more than run between a checkpoint and SLURM's signal to end
TRAIN = ["train", "--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
         os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", "--lr=3e-3", "--seed=5",
         "--only-data-parallel", f"--steps={STEPS}", "--checkpoint-every=100000"]
RESOURCES = ["--nodes=2", "--cpus-per-task=1", "--mem=600", "--time=10:00"]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@unittest.skipIf(REASON, REASON)
class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="espalier-slurm-"))
        cls.slurm = Slurm(cls.folder)
        cls.addClassCleanup(cls.slurm.close)
        # They run while the first tests prepare theirs.
        cls.undisturbed = cls.submit(*TRAIN)
        cls.refused = cls.submit(*TRAIN, "--dataset=/no/such/file")
        # No plan fits into the workers' memory: the job fails once it runs.
        huge = ["train", "--model=llama:hidden=4096,layers=8,heads=32,intermediate=16384,positions=64", *TRAIN[2:]]
        cls.failing = subprocess.Popen([PROGRAMS["espalier"], "launch", "slurm", *RESOURCES, "--json", "--", *huge],
                                       env=cls.slurm.env, cwd=cls.folder, stdout=subprocess.PIPE, text=True)

    @classmethod
    def espalier(cls, *arguments, check=True):
        return cls.slurm.run(PROGRAMS["espalier"], *arguments, check=check)

    @classmethod
    def submit(cls, *train, options=()):
        script = cls.espalier("slurm", "script", *RESOURCES, "--", *train).stdout
        return cls.slurm.submit(script, *options)

    def output(self, job):
        try:
            return read(f"{self.folder}/espalier-{job}.out")
        except OSError:
            return ""

    def wait(self, job, condition, seconds, what):
        try:
            self.slurm.wait(condition, seconds, what)
        except AssertionError as error:
            logs = "\n".join(f"--- {path}\n{read(path)[-4000:]}" for path in glob.glob(f"{self.folder}/espalier-{job}/*.log"))
            raise AssertionError(f"{error}\n{self.output(job)}\n{logs}") from None

    def wait_for_end(self, job, seconds=120):
        self.wait(job, lambda: self.slurm.state(job) in ENDED, seconds, f"job {job} ends")
        return self.slurm.job(job)

    def processes(self, job):
        """Those of all users here that belong to a batch job."""
        found = []
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                number = path.split("/")[2]
                if f"SLURM_JOB_ID={job}" in read(path).split("\0"):
                    found.append((number, read(f"/proc/{number}/cmdline").replace("\0", " ")))
            except (OSError, ValueError):
                pass  # it has ended, or is a stranger's
        return found

    def check_nothing_is_left(self, job):
        self.wait(job, lambda: not self.processes(job), 30, f"no process of job {job} is left: {self.processes(job)}")

    def on_its_coordinator(self, job, *arguments):
        """Runs a command on the coordinator of a job that runs."""
        return self.espalier(*arguments, f"--home={self.folder}/espalier-{job}").stdout

    def training(self, job, field):
        """A number of the training that the job runs; 0 before it is submitted."""
        try:
            jobs = json.loads(self.on_its_coordinator(job, "jobs", "--json"))["jobs"]
            return int(jobs[-1].get(field, 0)) if jobs else 0
        except (OSError, ValueError):
            return 0

    def steps_done(self, job):
        return self.training(job, "steps_done")

    def curve(self, job):
        """Loss by step, from what the batch job has left: a folder that `espalier up` goes on with."""
        home = f"--home={self.folder}/espalier-{job}"
        self.espalier("up", home, "--local-workers=0", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--", "--tls=auto")
        try:
            jobs = json.loads(self.espalier("jobs", home, "--json").stdout)["jobs"]
            self.assertEqual([(j["id"], j["state"].upper()) for j in jobs], [("job-1", "SUCCEEDED")])
            reply = json.loads(self.espalier("jobs", "get", "job-1", home, "--json").stdout)
        finally:
            self.espalier("down", home)
        return {int(r.get("step", 0)): r["values"]["loss"] for r in reply["reports"]}, reply["job"]

    def test_a_training_succeeds(self):
        job = self.wait_for_end(self.undisturbed)
        self.assertEqual((job["JobState"], job["ExitCode"]), ("COMPLETED", "0:0"), self.output(self.undisturbed))
        text = self.output(self.undisturbed)
        self.assertIn("2 of 2 workers have joined", text)
        self.assertIn("job job-1 succeeded", text)
        self.assertRegex(text, rf"step +{STEPS}/{STEPS} 100%")
        workers = read(f"{self.folder}/espalier-{self.undisturbed}/workers.log")
        self.assertRegex(workers, r"0: .* joined .* as")
        self.assertRegex(workers, r"1: .* joined .* as")
        self.check_nothing_is_left(self.undisturbed)

    def test_launch_has_the_exit_code_of_a_training_that_fails(self):
        out, _ = self.failing.communicate(timeout=120)
        last = [json.loads(line) for line in out.splitlines()][-2:]
        self.assertEqual((self.failing.returncode, last[0]["state"], last[0]["exit_code"]), (1, "FAILED", "1:0"), out)
        self.assertIn("has ended as FAILED", last[1]["error"]["message"])
        self.check_nothing_is_left(last[0]["slurm_job"])

    def test_a_training_that_is_refused_fails_the_batch_job(self):
        self.assertEqual(self.wait_for_end(self.refused)["JobState"], "FAILED")
        self.assertIn("/no/such/file", self.output(self.refused))
        self.check_nothing_is_left(self.refused)

    def test_usr1_writes_a_checkpoint_requeues_and_the_curve_is_undisturbed(self):
        job = self.submit(*TRAIN)
        self.wait(job, lambda: self.steps_done(job) >= 50, 120, "the training runs")
        # As SLURM does before the time limit.
        self.slurm.run("scancel", "--batch", "--signal=USR1", job)
        self.wait(job, lambda: self.slurm.job(job)["Restarts"] == "1", 120, "the job is requeued")
        end = self.wait_for_end(job)
        text = self.output(job)
        self.assertEqual((end["JobState"], end["Restarts"]), ("COMPLETED", "1"), text)
        said = [line for line in text.splitlines() if "goes on from its checkpoint of step" in line and "run 2" in line]
        self.assertEqual(len(said), 1, text)
        step = int(said[0].rpartition(" ")[2])
        # Or a later one, which the job's recording took before it was requeued.
        (written,) = re.findall(r"job job-1 has a checkpoint of step (\d+)", text)
        self.assertGreaterEqual(int(written), 50)
        self.assertGreaterEqual(step, int(written))
        self.check_nothing_is_left(job)
        self.wait_for_end(self.undisturbed)
        expected, _ = self.curve(self.undisturbed)
        curve, record = self.curve(job)
        self.assertEqual(sorted(curve), list(range(STEPS)))
        self.assertEqual(curve, expected)  # to the bit
        self.assertEqual(int(record["attempts"]), 2)

    def test_the_loss_of_a_node_s_worker_is_survived_and_scancel_leaves_no_process(self):
        job = self.submit(*TRAIN, "--steps=100000", "--checkpoint-every=20")
        self.wait(job, lambda: self.training(job, "checkpoint_step") >= 20, 120, "there is a checkpoint")
        processes = self.processes(job)
        names = " ".join(command for _, command in processes)
        for program in ("espalierd", "espalier-worker", "srun"):
            self.assertIn(program, names)
        self.assertNotIn("esp1.", names)  # tokens
        (worker,) = [number for number, command in processes if "espalier-worker" in command and "--name=n2" in command]
        os.kill(int(worker), signal.SIGKILL)
        self.wait(job, lambda: "going back to step" in self.output(job), 60, "the loss is noticed")
        done = self.steps_done(job)
        self.wait(job, lambda: self.steps_done(job) > done, 60, "the training goes on")
        self.slurm.run("scancel", job)
        self.check_nothing_is_left(job)
        self.assertEqual(self.wait_for_end(job)["JobState"], "CANCELLED")

    def test_the_commands_of_the_page(self):
        os.symlink(os.path.join(DATA, "genesis.txt"), f"{self.folder}/book.txt")
        batch, launch = commands("slurm.md")
        path = {"PATH": f"{os.path.dirname(PROGRAMS['espalier'])}:{os.environ['PATH']}"}
        said = self.slurm.run("bash", "-euo", "pipefail", "-c", batch, env=path).stdout
        job = said.split()[-1]  # "Submitted batch job 1"
        said = self.slurm.run("bash", "-euo", "pipefail", "-c", launch, env=path).stdout
        self.assertRegex(said, r"SLURM job \d+: (pending|running)")
        self.assertIn("job job-1 succeeded", said)
        self.assertRegex(said, r"SLURM job \d+: completed")
        self.assertEqual(self.wait_for_end(job)["JobState"], "COMPLETED", self.output(job))
        # The page shows the file that its commands make.
        with open(os.path.join(PAGES, "slurm.md")) as page:
            shown = page.read()
        made = read(f"{self.folder}/job.sh").replace(os.path.realpath(PROGRAMS["espalier"]), "espalier")
        self.assertIn(f"```sh\n{made}```", shown)

    def test_the_batch_file_is_clean(self):
        if subprocess.run(["sh", "-c", "command -v shellcheck"], capture_output=True).returncode != 0:
            self.skipTest("shellcheck is not installed; deploy/install.sh --tests installs it")
        script = self.espalier("slurm", "script", *RESOURCES, "--gpus=2", "--account=me", "--constraint=a100&ib|nvme",
                               "--sbatch=exclusive", "--", "train", "--model=llama:tiny", "-d", "my book's text.txt", "--steps=3").stdout
        path = f"{self.folder}/job.sh"
        with open(path, "w") as file:
            file.write(script)
        checked = subprocess.run(["shellcheck", path], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        self.assertLess(len(script.splitlines()), 30)
        for line in ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1", "--requeue",
                     "--signal=B:USR1@120", "--account=me", "--constraint=a100&ib|nvme", "--exclusive"):
            self.assertIn(f"#SBATCH {line}", script)


if __name__ == "__main__":
    unittest.main()
