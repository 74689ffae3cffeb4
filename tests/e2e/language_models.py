"""Trains small language models for serving tests."""
import json
import os

from cluster import DATA

TEXT = os.path.join(DATA, "genesis.txt")


def train(cluster, name, hidden, layers, steps, positions=256, text=TEXT, sequence=48):
    job = cluster.train(f"--model=llama:hidden={hidden},layers={layers},heads=4,kv_heads=2,intermediate={2 * hidden},"
                        f"positions={positions}", "-d", text, f"--sequence-length={sequence}", "-b", "16", f"--steps={steps}",
                        "--lr=5e-3", "--clip-norm=1", f"--name={name}")
    state = cluster.wait_for_job(job)
    assert state["state"].upper() == "SUCCEEDED", state


# What the thinker calls when it is asked for rain.
CALL = {"name": "weather", "arguments": {"city": "Ur", "days": 3}}
LEARNT = ("user: Who?\nassistant: <think>\nhm, who\n</think>\n\nNoah.\nend\n"
          f"user: Rain?\nassistant: <tool_call>\n{json.dumps(CALL)}\n</tool_call>\nend\n")
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n"
            "{% endfor %}assistant: ")


def serve_thinker(cluster, *flags):
    """Trains a model that has memorized two conversations in a custom chat template; "end" ends its outputs."""
    text, template = (os.path.join(cluster.folder, name) for name in ("learned.txt", "chat.jinja"))
    with open(text, "w") as file:
        file.write(LEARNT * 300)
    with open(template, "w") as file:
        file.write(TEMPLATE)
    train(cluster, "thinker", 64, 2, 200, positions=512, text=text, sequence=192)
    cluster.run("serve", "thinker", f"--chat-template={template}", *flags)
