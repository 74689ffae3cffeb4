"""A cluster whose recordings are spooled."""
import json
import os

from cluster import DATA, Cluster, Failed

STEPS = 60
MODEL = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "--sequence-length=32",
         "-b", "8", "--lr=3e-3", "--seed=5", "--max-devices=1", "-d", os.path.join(DATA, "genesis.txt")]


class SpoolCluster(Cluster):
    def __init__(self, spool, **options):
        super().__init__(lease=5, daemon_flags=[f"--spool={spool}"], **options)

    def submit(self, name, *flags, steps=STEPS):
        if not any(flag.startswith("--record=") for flag in flags):
            flags = (*flags, "--record=every:10")
        return self.train(*MODEL, f"--steps={steps}", f"--name={name}", *flags)

    def record(self, name, *flags, steps=STEPS):
        job = self.submit(name, *flags, steps=steps)
        done = self.wait_for_job(job)
        assert done["state"].upper() == "SUCCEEDED", done
        return job

    def wait_until_spooled(self, run, steps, seconds=60):
        self.wait(lambda: checkpoints(self, run)["spooled"] == list(steps), seconds, f"{run} is spooled")

    def replay(self, run, *flags):
        """The answers, and the replay when it is over."""
        done = self.cli("replay", run, *flags, "--json", check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        replays = [line["replay"] for line in lines if isinstance(line.get("replay"), dict)]
        if not replays:
            raise Failed(done.returncode, done.stdout, done.stderr)
        return [line for line in lines if "step" in line], replays[0]


def checkpoints(cluster, run):
    """Steps of a run's checkpoints that are "stored", and that are "spooled"."""
    found = cluster.run("runs", "get", f"{run}@1").get("checkpoints", [])
    return {where: sorted(int(checkpoint["steps_done"]) for checkpoint in found if checkpoint.get(where))
            for where in ("stored", "spooled")}


def named(rows, name, reduction):
    return {row["step"]: row["value"] for row in rows if (row["name"], row["reduction"]) == (name, reduction)}
