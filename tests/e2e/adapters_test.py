"""LoRA adapters in PEFT's layout through the daemon: upload, serving, selection per request over HTTP and gRPC, with
speculation, and after a crash; invalid adapters are rejected with the reason."""

import json
import os
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, Failed  # noqa: E402
from model_files import weights, write_model, write_safetensors  # noqa: E402

ADAPTER = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 6,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj", "down_proj"],
    "lora_dropout": 0.1,
    "inference_mode": True,
    "base_model_name_or_path": "somewhere/base",
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "peft_version": "0.17.1",
}


def changes(seed, base, rank=4):
    """{module: (A, B)} for the targets of ADAPTER."""
    random = np.random.default_rng(seed)
    pairs = {}
    for name, matrix in base.items():
        module = name[: -len(".weight")]
        if module.split(".")[-1] in ADAPTER["target_modules"]:
            out, wide = matrix.shape
            pairs[module] = (
                (random.normal(size=(rank, wide)) / wide**0.5).astype(np.float32),
                (random.normal(size=(out, rank)) / rank**0.5).astype(np.float32),
            )
    return pairs


def merged(base, pairs, scale):
    out = dict(base)
    for module, (a, b) in pairs.items():
        out[module + ".weight"] = base[module + ".weight"] + np.float32(scale) * (b @ a)
    return out


class AdaptersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(workers=2)
        try:
            cls.base = weights()
            cls.upload_model("base", cls.base)
            cls.poet, cls.clerk = changes(1, cls.base), changes(2, cls.base)
            cls.upload_adapter("poems", cls.poet)
            cls.upload_adapter("forms", cls.clerk, use_rslora=True)
            cls.upload_model("whole-poet", merged(cls.base, cls.poet, 6 / 4))
            cls.upload_model("whole-clerk", merged(cls.base, cls.clerk, 6 / 2))
            cls.cluster.run("serve", "base", "--name=llm", "--adapter=poet=poems", "--adapter=clerk=forms", "--ssm=base", "--expansion=1,2,1")
        except BaseException:
            cls.cluster.__exit__(True)
            raise

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()
        cls.folder.cleanup()

    @classmethod
    def upload_model(cls, name, tensors):
        folder = os.path.join(cls.folder.name, name)
        write_model(folder, tensors)
        cls.cluster.cli("models", "upload", name, folder)

    @classmethod
    def upload_adapter(cls, name, pairs, **config):
        folder = os.path.join(cls.folder.name, name)
        os.makedirs(folder)
        tensors = {}
        for module, (a, b) in pairs.items():
            tensors[f"base_model.model.{module}.lora_A.weight"] = a
            tensors[f"base_model.model.{module}.lora_B.weight"] = b
        write_safetensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
        with open(os.path.join(folder, "adapter_config.json"), "w") as file:
            json.dump({**ADAPTER, **config}, file)
        cls.cluster.cli("models", "upload", name, folder)

    def post(self, path, body):
        status, text = self.cluster.request("POST", path, json.dumps(body))
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def complete(self, model, prompt="In the beginning God created the heaven", **fields):
        return self.post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **fields})["choices"][0]

    def scores(self, model):
        choice = self.complete(model, max_tokens=0, echo=True, logprobs=0)
        return np.array(choice["logprobs"]["token_logprobs"][1:])

    def test_adapter_matches_merged_model(self):
        plain = self.scores("llm")
        for adapter, whole in (("poet", "whole-poet"), ("clerk", "whole-clerk")):
            self.cluster.run("serve", whole)
            worst = np.abs(self.scores(adapter) - self.scores(whole)).max()
            print(f"{adapter}: log-probabilities up to {worst:.2g} off those of the merged model")
            self.assertLess(worst, 1e-4)
            self.assertGreater(np.abs(self.scores(adapter) - plain).max(), 0.1)
            self.cluster.run("unserve", whole)

    def test_adapters_are_sharded_over_workers(self):
        for flags in (["--tensor-parallel=2"], ["--pipeline-parallel=2"]):
            self.cluster.run("serve", "base", "--name=far", "--adapter=far-poet=poems", "--adapter=far-clerk=forms", "--ssm=base", "--expansion=1,2,1", *flags)
            for far, near in (("far", "llm"), ("far-poet", "poet"), ("far-clerk", "clerk")):
                worst = np.abs(self.scores(far) - self.scores(near)).max()
                print(f"{far} {flags[0]}: log-probabilities up to {worst:.2g} off those of the coordinator's process")
                self.assertLess(worst, 2e-5)
                with_trees = self.complete(far)
                self.assertEqual(with_trees["text"], self.complete(far, speculation=False)["text"])
            self.cluster.run("unserve", "far")

    def test_speculation_with_base_model_ssm_is_lossless(self):
        for model in ("llm", "poet", "clerk"):
            with_trees = self.complete(model)
            self.assertEqual(with_trees["text"], self.complete(model, speculation=False)["text"])
        out = self.cluster.run("generate", "llm", "--adapter=poet", "And God said", "--max-tokens=30", "--compare")
        self.assertTrue(out["identical"], out)

    def test_prefix_cache_is_per_adapter(self):
        prompt = "And the earth was without form, and void; and darkness was upon the face of the deep."

        def answer(model):
            body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 0}
            reply = self.post("/v1/completions", body)
            choice = reply["choices"][0]
            return ((choice["text"], tuple(choice["logprobs"]["token_logprobs"])), reply["usage"]["prompt_tokens_details"]["cached_tokens"])

        first = {model: answer(model)[0] for model in ("llm", "poet", "clerk")}
        self.assertEqual(len(set(first.values())), 3)
        for model in ("clerk", "llm", "poet"):  # from the cache now
            again, cached = answer(model)
            self.assertGreater(cached, 0)
            self.assertEqual(again, first[model])

    def test_adapters_are_listed_under_their_model(self):
        models = {m["id"]: m for m in json.loads(self.cluster.get("/v1/models")[1])["data"]}
        self.assertEqual({m: models[m]["parent"] for m in ("llm", "poet", "clerk")}, {"llm": None, "poet": "llm", "clerk": "llm"})
        self.assertEqual(json.loads(self.cluster.get("/v1/models/poet")[1])["parent"], "llm")
        served = self.cluster.run("serve")["models"][0]
        self.assertEqual([a["name"] for a in served["adapters"]], ["poet", "clerk"])

    def text_of(self, *args):
        lines = self.cluster.cli("generate", *args, "--max-tokens=24", "--ignore-eos", "--temperature=0", "--json").stdout
        return json.loads(lines.strip().splitlines()[-1])["done"]["text"]

    def test_grpc_and_http_select_the_same_adapter(self):
        prompt = "In the beginning God created the heaven"
        for adapter in ("poet", "clerk"):
            expected = self.complete(adapter)["text"]
            self.assertEqual(self.text_of("llm", f"--adapter={adapter}", prompt), expected)
            self.assertEqual(self.text_of(adapter, prompt), expected)
            self.assertEqual(self.text_of("llm", f"--adapter={adapter}", prompt, "--http"), expected)
        for args, word in ((("llm", "--adapter=cook"), "poet, clerk"), (("poet", "--adapter=clerk"), "'clerk'")):
            with self.assertRaises(Failed) as caught:
                self.cluster.cli("generate", *args, "x")
            self.assertIn(word, caught.exception.err)

    def test_embeddings_depend_on_the_adapter(self):
        vectors = {m: self.post("/v1/embeddings", {"model": m, "input": "light"})["data"][0]["embedding"] for m in ("llm", "poet")}
        self.assertGreater(np.abs(np.subtract(vectors["llm"], vectors["poet"])).max(), 0.01)

    def refused(self, name, *parts, artifact=None):
        with self.assertRaises(Failed) as caught:
            self.cluster.cli("serve", "base", "--name=refused", f"--adapter={name}={artifact or name}")
        for part in parts:
            self.assertIn(part, caught.exception.err)

    def test_invalid_adapters_are_rejected_by_name(self):
        for name, change, word in (
            ("dora", {"use_dora": True}, "use_dora"),
            ("biases", {"bias": "lora_only"}, "bias"),
            ("ia3", {"peft_type": "IA3"}, "peft_type"),
            ("saved", {"modules_to_save": ["lm_head"]}, "modules_to_save"),
            ("activated", {"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
            ("ranks", {"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
            ("pissa", {"init_lora_weights": "pissa"}, "init_lora_weights"),
            ("tomorrow", {"use_magic": 3}, "use_magic"),
            ("rankless", {"r": 0}, '"r"'),
        ):
            self.upload_adapter(name, self.poet, **change)
            self.refused(name, f"artifact '{name}'", "adapter_config.json", word)
        short = dict(self.poet)
        module = "model.layers.1.self_attn.q_proj"
        short[module] = (short[module][0][:, :-1], short[module][1])
        self.upload_adapter("short", short)
        self.refused("short", module + ".lora_A.weight", "[4, 31]", "[4, 32]")
        self.refused("base", "adapter_config.json")  # a model is no adapter
        self.refused("nowhere", "nowhere")
        self.refused("poet", "'poet' is already the name of an adapter of model 'llm'", artifact="poems")
        self.refused("llm", "'llm' is already the name of a served model", artifact="poems")
        with self.assertRaises(Failed) as caught:
            self.cluster.cli("serve", "base", "--name=poet")
        self.assertIn("already the name of an adapter", caught.exception.err)

    def test_zz_adapters_are_restored_after_a_crash(self):
        before = self.complete("clerk")["text"]
        self.cluster.kill(self.cluster.daemon)
        self.cluster.start_daemon()
        self.cluster.wait(lambda: '"clerk"' in self.cluster.get("/v1/models")[1], 60, "the adapters are back")
        self.assertEqual(self.complete("clerk")["text"], before)


if __name__ == "__main__":
    unittest.main()
