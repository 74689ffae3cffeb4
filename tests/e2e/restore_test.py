"""Restoring served models at daemon start, including slow and failing loads, and shutdown meanwhile."""
import glob
import json
import os
import struct
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, Failed, read  # noqa: E402
from model_files import CONFIG, VOCABULARY, weights, write_model  # noqa: E402

# Some gigabytes of zeros that lie nowhere, which take seconds to be packed in 4 bits.
H, WIDE, HEADS, LAYERS = 2048, 8192, 16, 24
LARGE = {**CONFIG, "hidden_size": H, "intermediate_size": WIDE, "num_attention_heads": HEADS, "head_dim": H // HEADS,
         "num_key_value_heads": HEADS // 4, "num_hidden_layers": LAYERS}


def large_shapes():
    kv = H // 4
    shapes = {"model.embed_tokens.weight": (VOCABULARY, H), "model.norm.weight": (H,)}
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        shapes.update({p + "input_layernorm.weight": (H,), p + "post_attention_layernorm.weight": (H,),
                       p + "self_attn.q_proj.weight": (H, H), p + "self_attn.k_proj.weight": (kv, H),
                       p + "self_attn.v_proj.weight": (kv, H), p + "self_attn.o_proj.weight": (H, H),
                       p + "self_attn.q_norm.weight": (H // HEADS,), p + "self_attn.k_norm.weight": (H // HEADS,),
                       p + "mlp.gate_proj.weight": (WIDE, H), p + "mlp.up_proj.weight": (WIDE, H),
                       p + "mlp.down_proj.weight": (H, WIDE)})
    return shapes


def write_zeros(path, shapes):
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4
        for dim in shape:
            size *= dim
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


class RestoreTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.cluster = Cluster(workers=0)
        for name in ("large", "small"):
            write_model(os.path.join(self.folder.name, name), weights())
            self.cluster.cli("models", "upload", name, os.path.join(self.folder.name, name))
            self.cluster.cli("serve", name, "--weights=int4", "--max-requests-per-batch=1")
        self.stop()

    def tearDown(self):
        self.cluster.close()
        self.folder.cleanup()

    def stop(self):
        self.cluster.daemon.terminate()
        self.assertEqual(self.cluster.daemon.wait(30), 0)

    def of_large(self):
        folders = glob.glob(os.path.join(self.cluster.folder, "data", "artifacts", "data", "large@*"))
        self.assertEqual(len(folders), 1)
        return folders[0]

    def enlarge(self):
        folder = self.of_large()
        os.rename(folder, os.path.join(self.folder.name, "kept"))
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(LARGE, file)
        write_zeros(os.path.join(folder, "model.safetensors"), large_shapes())

    def shrink(self):
        folder = self.of_large()
        os.rename(folder, os.path.join(self.folder.name, "zeros"))
        os.rename(os.path.join(self.folder.name, "kept"), folder)

    def complete(self, name):
        return self.cluster.request("POST", "/v1/completions", json.dumps({"model": name, "prompt": "In", "max_tokens": 3}))

    def states(self):
        return {model["name"]: model.get("state", "") for model in self.cluster.run("serve")["models"]}

    def listed(self):
        return [model["id"] for model in json.loads(self.cluster.get("/v1/models")[1])["data"]]

    def said_ready(self):
        with open(self.cluster.logs[-1]) as log:
            return "espalierd ready" in log.read()

    def test_daemon_answers_while_a_model_loads(self):
        self.enlarge()
        self.cluster.start_daemon("/health")
        self.assertEqual(self.cluster.get("/ready")[0], 503)
        status, text = self.complete("large")
        self.assertEqual(status, 503, text)
        self.assertIn("is being loaded", text)
        self.assertEqual(self.cluster.get("/v2/models/large/ready")[0], 503)
        self.assertEqual(self.states(), {"large": "loading", "small": "loading"})
        self.assertFalse(self.said_ready())
        self.assertEqual(self.cluster.get("/ready")[0], 503, "it was loaded too soon for this test")
        self.stop()
        self.assertNotIn("model large is served again", read(self.cluster.logs[-1]), "it has waited for the load")
        # Nothing of the last run was lost.
        self.shrink()
        self.cluster.start_daemon()
        self.assertEqual([self.complete(name)[0] for name in ("large", "small")], [200, 200])
        self.cluster.wait(self.said_ready, 10, "it says so")

    def test_shutdown_does_not_wait_for_a_load(self):
        self.cluster.start_daemon()
        self.enlarge()
        loading = lambda: 'espalier_models{state="loading"} 1' in self.cluster.get("/metrics")[1]  # noqa: E731
        answers = []
        serving = threading.Thread(target=lambda: answers.append(
            self.cluster.cli("serve", "large", "--name=again", "--weights=int4", check=False)))
        serving.start()
        self.cluster.wait(loading, 30, "it is being loaded")
        self.stop()
        serving.join(60)
        # Had it waited, the command would have succeeded.
        self.assertEqual(answers[0].returncode, 3, answers[0].stdout + answers[0].stderr)
        self.shrink()
        self.cluster.start_daemon()
        self.assertEqual(sorted(self.states()), ["large", "small"])
        self.assertEqual([self.complete(name)[0] for name in ("large", "small")], [200, 200])

    def test_failed_models_are_listed_and_can_be_unserved(self):
        os.remove(os.path.join(self.of_large(), "config.json"))
        self.cluster.start_daemon()
        self.assertEqual(self.cluster.get("/v2/health/ready")[0], 503)
        self.assertEqual(self.complete("small")[0], 200)
        self.assertIn("failed: artifact 'large'", self.states()["large"])
        self.assertEqual(self.listed(), ["small"])
        status, text = self.complete("large")
        self.assertEqual(status, 503, text)
        self.assertIn("espalier unserve large", text)
        self.cluster.run("unserve", "large")
        self.assertEqual(self.cluster.get("/v2/health/ready")[0], 200)
        self.assertEqual(self.complete("large")[0], 404)
        self.stop()
        self.cluster.start_daemon()
        self.assertEqual(list(self.states()), ["small"])

    def test_an_artifact_that_is_served_cannot_be_deleted(self):
        self.cluster.start_daemon()
        self.cluster.start_worker()
        self.cluster.wait_for_workers(1)
        self.cluster.run("serve", "large", "--name=far", "--tensor-parallel=1")
        with self.assertRaisesRegex(Failed, "needed by the served model 'far'; end that first: espalier unserve far"):
            self.cluster.run("models", "delete", "large")
        self.cluster.kill(self.cluster.workers[-1])
        ready = lambda: self.cluster.get("/v2/models/far/ready")[0] == 200  # noqa: E731
        self.cluster.wait(lambda: not ready(), 20, "the loss is seen")
        self.cluster.start_worker()
        self.cluster.wait(ready, 60, "it is loaded from the files that it was served from")
        self.of_large()
        for name in ("far", "large"):
            self.cluster.run("unserve", name)
        self.cluster.run("models", "delete", "large")
        self.assertEqual(glob.glob(os.path.join(self.cluster.folder, "data", "artifacts", "data", "large@*")), [])

    def test_requests_not_in_an_engine_finish_before_shutdown(self):
        self.cluster.start_daemon()
        body = json.dumps({"model": "small", "prompt": "In the beginning " * 100_000})
        start = time.time()
        status, whole = self.cluster.request("POST", "/tokenize", body)
        seconds = time.time() - start
        self.assertEqual(status, 200, whole[:200])
        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.cluster.request("POST", "/tokenize", body)))
        asking.start()
        time.sleep(seconds / 3)
        self.stop()
        asking.join(60)
        self.assertEqual(answers, [(200, whole)])


if __name__ == "__main__":
    unittest.main()
