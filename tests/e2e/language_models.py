"""Small language models of our own training, for tests of serving."""
import os

from cluster import DATA

TEXT = os.path.join(DATA, "genesis.txt")


def train(cluster, name, hidden, layers, steps, positions=256, text=TEXT, sequence=48):
    job = cluster.train(f"--model=llama:hidden={hidden},layers={layers},heads=4,kv_heads=2,intermediate={2 * hidden},"
                        f"positions={positions}", "-d", text, f"--sequence-length={sequence}", "-b", "16", f"--steps={steps}",
                        "--lr=5e-3", "--clip-norm=1", f"--name={name}")
    state = cluster.wait_for_job(job)
    assert state["state"].upper() == "SUCCEEDED", state
