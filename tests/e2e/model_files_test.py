"""Model folders in Hugging Face layout and GGUF files, from `espalier models upload` and `serve` to outputs over HTTP;
invalid folders are rejected with the reason."""
import json
import os
import re
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
import tokenizer_gguf as gguf  # noqa: E402
from cluster import Cluster, Failed  # noqa: E402
from model_files import (  # noqa: E402
    CONFIG, HIDDEN, LETTERS, MIXTURE, WIDE, bf16, compressed, flexflow, in_blocks, in_gguf, mixture, weights,
    write_model, write_tokenizer)


class ModelFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(workers=0)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()
        cls.folder.cleanup()

    def upload(self, name, tensors, **changes):
        folder = os.path.join(self.folder.name, name)
        write_model(folder, tensors, **changes)
        self.cluster.cli("models", "upload", name, folder)

    def complete(self, name):
        body = {"model": name, "prompt": "In the", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        status, text = self.cluster.request("POST", "/v1/completions", json.dumps(body))
        self.assertEqual(status, 200, text)
        answer = json.loads(text)
        self.assertEqual(answer["usage"]["completion_tokens"], 12)
        return answer["choices"][0]["text"]

    def test_sharded_model_is_served_and_half_precision_is_close(self):
        exact = weights()
        self.upload("exact", exact)
        self.cluster.cli("serve", "exact")
        self.assertEqual(self.complete("exact"), self.complete("exact"))
        # Values that f16 holds: the same answer from half the bytes.
        rounded = {name: value.astype(np.float16) for name, value in exact.items()}
        self.upload("half", rounded)
        self.upload("wide", {name: value.astype(np.float32) for name, value in rounded.items()})
        self.assertEqual(self.cluster.run("serve", "half")["weights"], "f16")
        self.assertEqual(self.cluster.run("serve", "wide")["weights"], "f32")
        self.assertEqual(self.complete("half"), self.complete("wide"))

    def test_weight_format_defaults_to_that_of_the_files(self):
        tensors = {name: bf16(value) for name, value in weights().items()}
        self.upload("brain", tensors)
        self.upload("brain-wide", {name: (value.astype(np.uint32) << 16).view(np.float32)
                                   for name, value in tensors.items()})
        self.assertEqual(self.cluster.run("serve", "brain", "--ssm=brain-wide")["weights"], "bf16")
        self.assertEqual(self.cluster.run("serve", "brain-wide", "--ssm=brain")["weights"], "f32")
        self.assertEqual(self.cluster.run("serve", "brain", "--name=told", "--weights=f32")["weights"], "f32")
        exact = self.prompt_logprobs("brain-wide")
        np.testing.assert_array_equal(self.prompt_logprobs("told"), exact)
        off = np.abs(self.prompt_logprobs("brain") - exact).max()
        print(f"bf16 files in bf16: log-probabilities up to {off:.2g} off")
        self.assertLess(off, 0.05)

    def prompt_logprobs(self, name):
        body = {"model": name, "prompt": "In the beginning God created", "max_tokens": 0, "echo": True, "logprobs": 0}
        status, text = self.cluster.request("POST", "/v1/completions", json.dumps(body))
        self.assertEqual(status, 200, text)
        return np.array(json.loads(text)["choices"][0]["logprobs"]["token_logprobs"][1:])

    def test_quantized_weights_are_close(self):
        self.upload("matrices", weights())
        self.cluster.cli("serve", "matrices")
        whole = self.prompt_logprobs("matrices")
        for weights_format, least, most in (("bf16", 0, 0.05), ("f16", 1e-7, 0.01), ("int8", 1e-6, 0.1),
                                             ("int4", 1e-3, 1.0)):
            name = "matrices-" + weights_format
            self.cluster.cli("serve", "matrices", "--name=" + name, "--weights=" + weights_format)
            worst = np.abs(self.prompt_logprobs(name) - whole).max()
            print(f"{weights_format}: log-probabilities up to {worst:.2g} off")
            self.assertLessEqual(least, worst)
            self.assertLess(worst, most)
        self.refused("matrices", "int3", "int4", flags=["--weights=int3", "--name=other"])

    def test_quantized_moe_is_close_and_speculation_is_lossless(self):
        self.upload("mixture", mixture(), **MIXTURE)
        self.cluster.cli("serve", "mixture")
        whole = self.prompt_logprobs("mixture")
        for weights_format, least, most in (("bf16", 0, 0.02), ("f16", 1e-7, 0.005), ("int8", 1e-6, 0.05),
                                             ("int4", 1e-3, 0.5)):
            name = "mixture-" + weights_format
            self.cluster.cli("serve", "mixture", "--name=" + name, "--weights=" + weights_format)
            off = np.abs(self.prompt_logprobs(name) - whole)
            print(f"mixture, {weights_format}: log-probabilities up to {off.max():.2g} off, {np.median(off):.2g} mostly")
            self.assertLessEqual(least, off.max())
            self.assertLess(np.median(off), most / 5)
            self.assertLess(off.max(), most)
            if weights_format in ("bf16", "f16"):
                continue
            self.cluster.run("models", "quantize", "mixture", "--weights=" + weights_format, "--out=packed-" + name)
            self.cluster.cli("serve", "packed-" + name)
            np.testing.assert_array_equal(self.prompt_logprobs("packed-" + name), self.prompt_logprobs(name))
            self.cluster.cli("serve", "mixture", "--name=trees-" + name, "--weights=" + weights_format, "--ssm=mixture",
                             "--ssm-weights=int4", "--expansion=1,2,1")
            self.assertEqual(self.complete("trees-" + name), self.complete(name))
        report = self.cluster.run("verify-lossless", "--llm=mixture", "--ssm=mixture", "--weights=int8",
                                  "--ssm-weights=int4", "--expansion=1,2,1", "--draws=2000")
        self.assertTrue(report["passed"], report)

    def test_uploads_say_at_once_what_cannot_be_served(self):
        for name, changes, reason in (("bloom", {"architectures": ["BloomForCausalLM"]}, '"architectures" is'),
                                      ("scaled", {"logits_scaling": 8.0}, '"logits_scaling" is 8.0'),
                                      ("good", {"dtype": "float32", "transformers_version": "5.24.0"}, "")):
            folder = os.path.join(self.folder.name, name)
            write_model(folder, weights(), **changes)
            said = self.cluster.cli("models", "upload", name, folder).stderr
            self.assertEqual("cannot be served" in said, bool(reason), said)
            self.assertIn(reason, said)
            self.assertIn(name, self.cluster.cli("models").stdout)  # kept
            if reason:
                self.refused(name, reason)

    def test_nan_weights_end_requests_or_fail_quantization(self):
        tensors = weights()
        tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = np.nan
        self.upload("broken", tensors)
        self.cluster.cli("serve", "broken")
        body = {"model": "broken", "prompt": "In the", "max_tokens": 12, "temperature": 0}
        status, text = self.cluster.request("POST", "/v1/completions", json.dumps(body))
        self.assertEqual(status, 500, text)
        self.assertIn("weights intact", text)
        self.refused("broken", "row 3, column 5 is nan", flags=["--weights=int8", "--name=packed"])

    def test_flexflows_raw_and_compressed_files_are_served(self):
        """The same weights by Hugging Face's file and by FlexFlow's, as they are and compressed."""
        plain = {name: value for name, value in weights().items() if "_norm" not in name or "layernorm" in name}
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        self.upload("plain", plain, **config)
        self.cluster.cli("serve", "plain")
        for bits, most in ((0, 0), (8, 0.05), (4, 1.5)):
            name = f"flexflow-{bits}"
            folder = os.path.join(self.folder.name, name)
            os.makedirs(folder)
            for file, value in flexflow(plain).items():
                parts = {file: value}
                if bits and ("attention_w" in file or "feed_forward" in file):
                    parts = compressed(file, value, bits)
                for part, data in parts.items():
                    data.tofile(os.path.join(folder, part))
            with open(os.path.join(folder, "config.json"), "w") as out:
                json.dump({**CONFIG, **config}, out)
            self.cluster.cli("models", "upload", name, folder)
            self.cluster.cli("serve", name)
            worst = np.abs(self.prompt_logprobs(name) - self.prompt_logprobs("plain")).max()
            print(f"FlexFlow, {bits or 32} bits: log-probabilities up to {worst:.2g} off")
            self.assertLessEqual(worst, most)
            self.assertEqual(worst > 0, bits > 0)

    def test_a_gguf_alone_is_served_with_its_own_tokenizer(self):
        """Against the same model by safetensors and tokenizer.json."""
        merges = [("h", "e"), ("t", "he"), (LETTERS[32], "the")]
        tokens = [LETTERS[byte] for byte in range(256)] + [a + b for a, b in merges] + ["<|end|>"]
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        size, end = len(tokens), len(tokens) - 1
        tensors = {name: value for name, value in weights().items() if "_norm" not in name}
        tensors["model.embed_tokens.weight"] = np.random.default_rng(7).normal(size=(size, HIDDEN)).astype(np.float32)
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "tokenizer": None,
                  "eos_token_id": end}
        folder = os.path.join(self.folder.name, "by-safetensors")
        write_model(folder, tensors, **config)
        write_tokenizer(folder, tokens, merges, added=[end])
        self.cluster.cli("models", "upload", "by-safetensors", folder)

        inside = in_gguf(tensors)
        sizes = {"context_length": 128, "embedding_length": HIDDEN, "block_count": 2, "feed_forward_length": WIDE,
                 "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
                 "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0}
        entries = {"general.architecture": gguf.value("llama"),
                   **{"llama." + key: gguf.value(v) for key, v in sizes.items()},
                   "tokenizer.ggml.model": gguf.value("gpt2"), "tokenizer.ggml.pre": gguf.value("gpt-2"),
                   "tokenizer.ggml.tokens": gguf.array(gguf.STRING, tokens),
                   "tokenizer.ggml.token_type": gguf.array(gguf.INT32, [1] * end + [3]),
                   "tokenizer.ggml.merges": gguf.array(gguf.STRING, [" ".join(m) for m in merges]),
                   "tokenizer.ggml.eos_token_id": gguf.value(end), "tokenizer.chat_template": gguf.value(template)}
        alone = os.path.join(self.folder.name, "alone")
        gguf.write(alone, entries, inside)
        self.cluster.cli("models", "upload", "by-gguf", os.path.join(alone, "model.gguf"))
        for name in ("by-safetensors", "by-gguf"):
            self.cluster.cli("serve", name)
        text = "In the beginning thé 漢字 <|end|> the end"

        def tokens_of(name):
            return json.loads(self.cluster.request("POST", "/tokenize", json.dumps({"model": name, "prompt": text}))[1])
        self.assertEqual(tokens_of("by-gguf")["tokens"], tokens_of("by-safetensors")["tokens"])
        self.assertLess(len(tokens_of("by-gguf")["tokens"]), len(text.encode()) - 5)
        np.testing.assert_array_equal(self.prompt_logprobs("by-gguf"), self.prompt_logprobs("by-safetensors"))
        self.assertEqual(self.complete("by-gguf"), self.complete("by-safetensors"))
        body = {"model": "by-gguf", "messages": [{"role": "user", "content": "In the"}], "max_tokens": 12,
                "temperature": 0, "ignore_eos": True}
        status, answer = self.cluster.request("POST", "/v1/chat/completions", json.dumps(body))
        self.assertEqual(status, 200, answer)
        self.assertEqual(json.loads(answer)["choices"][0]["message"]["content"], self.complete("by-gguf"))
        self.cluster.cli("models", "quantize", "by-gguf", "--weights=int8", "--out=by-gguf-int8")
        self.cluster.cli("serve", "by-gguf-int8")
        self.assertEqual(tokens_of("by-gguf-int8")["tokens"], tokens_of("by-gguf")["tokens"])
        status, answer = self.cluster.request("POST", "/v1/chat/completions",
                                              json.dumps({**body, "model": "by-gguf-int8"}))
        self.assertEqual(status, 200, answer)
        gguf.write(alone, {**entries, "tokenizer.ggml.pre": gguf.value("chameleon")}, inside)
        self.cluster.cli("models", "upload", "strange", os.path.join(alone, "model.gguf"))
        self.refused("strange", "tokenizer.ggml.pre", "chameleon")

    def test_gguf_blocks_keep_their_bits(self):
        """In files with blocks of 4 bits some matrices have 8."""
        exact = {name: value for name, value in weights(64).items() if "_norm" not in name or "layernorm" in name}
        sizes = {"context_length": 128, "embedding_length": HIDDEN, "block_count": 2, "feed_forward_length": 64,
                 "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
                 "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0}
        entries = {"general.architecture": gguf.value("llama"),
                   **{"llama." + key: gguf.value(v) for key, v in sizes.items()}}
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 64}
        for title, wide in (("four", ()), ("mixed", ("v_proj", "down_proj"))):
            kinds = {name: 8 if any(part in name for part in wide) else 2 for name in exact if "proj" in name}
            means = {name: in_blocks(kinds[name], value)[1] if name in kinds else value for name, value in exact.items()}
            self.upload(title + "-means", means, **config)
            folder = os.path.join(self.folder.name, title + "-blocks")
            blocks = in_gguf(exact)
            for name in kinds:
                key = next(iter(in_gguf({name: exact[name]})))
                blocks[key] = in_blocks(kinds[name], blocks[key])[0]
            gguf.write(folder, entries, blocks)
            with open(os.path.join(folder, "config.json"), "w") as out:
                json.dump({**CONFIG, **config}, out)
            self.cluster.cli("models", "upload", title + "-blocks", folder)
            self.assertEqual(self.cluster.run("serve", title + "-blocks")["weights"], "int4")
            self.cluster.cli("serve", title + "-means")
            self.cluster.cli("serve", title + "-means", "--name=" + title + "-int4", "--weights=int4")
            true, own, int4 = (self.prompt_logprobs(title + "-" + what) for what in ("means", "blocks", "int4"))
            print(f"{title}: log-probabilities of blocks up to {np.abs(own - true).max():.2g} off, "
                  f"of int4 {np.abs(int4 - true).max():.2g}")
            # Weights are what they were; what they are multiplied with is rounded to 8 bits.
            self.assertLess(np.abs(own - true).max(), 0.01)
            self.assertGreater(np.abs(int4 - true).max(), 4 * np.abs(own - true).max(), "all in 4 bits")

    def test_every_draft_source_is_lossless(self):
        self.upload("drafted", weights())
        self.cluster.cli("serve", "drafted", "--no-prefix-cache")
        plain = self.complete("drafted")
        # Flags, whether trees are chosen at each step, and how far n-gram drafts reach.
        ways = {"trees": (["--ssm=drafted", "--expansion=1,2,1"], False, 0), "tuned": (["--ssm=drafted"], True, 6),
                "ssm alone": (["--ssm=drafted", "--ngram=0"], True, 0), "tuned n-gram drafts": (["--tune"], True, 6),
                "always": (["--ssm=drafted", "--ngram=4", "--no-tune"], False, 4), "ngram": (["--ngram=4"], True, 4),
                "all": (["--ssm=drafted", "--tune", "--ngram=4", "--ssm-weights=int8"], True, 4)}
        for way, (flags, tuned, ngram) in ways.items():
            way = way.replace(" ", "-")
            served = self.cluster.run("serve", "drafted", "--name=drafted-" + way, *flags)
            self.assertEqual(served.get("tune_speculation", False), tuned, way)
            self.assertEqual(served.get("ngram_depth", 0), ngram, way)
            for _ in range(3):
                self.assertEqual(self.complete("drafted-" + way), plain, way)
            # Whatever drafts, a request may insist on it.
            self.cluster.cli("generate", "drafted-" + way, "In the", "--speculation=on", "--max-tokens=4")
        without = self.cluster.cli("generate", "drafted", "In the", "--speculation=on", check=False)
        self.assertIn("without SSMs and n-gram drafts", without.stderr)
        self.refused("drafted", "tune_speculation", flags=["--tune", "--ngram=0", "--name=nothing-to-tune"])
        undrafted = self.cluster.run("serve", "drafted", "--no-tune", "--name=undrafted")
        self.assertEqual((undrafted.get("tune_speculation", False), undrafted.get("ngram_depth", 0)), (False, 0))
        self.assertEqual(self.complete("undrafted"), plain)
        self.refused("drafted", "--expansion", flags=["--ssm=drafted", "--tune", "--expansion=1,2"])
        both = self.cluster.cli("serve", "drafted", "--ssm=drafted", "--tune", "--no-tune", check=False)
        self.assertEqual(both.returncode, 2)
        self.assertIn("not both", both.stderr)

    def test_speculation_is_lossless_in_every_weight_and_kv_format(self):
        self.upload("kept", weights())
        self.cluster.cli("serve", "kept")
        plain = self.complete("kept")
        size = sum(value.size for value in weights().values()) * 4
        self.cluster.cli("serve", "kept", "--name=kept-streaming", f"--resident-weights={size * 3 // 4}")
        self.assertEqual(self.complete("kept-streaming"), plain)
        whole = self.prompt_logprobs("kept")
        for kv_cache_dtype, least, most in (("f16", 0, 1e-3), ("bf16", 0, 1e-2), ("int8", 1e-7, 0.05)):
            out = self.cluster.cli("serve", "kept", "--name=kept-" + kv_cache_dtype, "--kv-cache=" + kv_cache_dtype)
            self.assertIn("KV cache in " + kv_cache_dtype, str(out))
            worst = np.abs(self.prompt_logprobs("kept-" + kv_cache_dtype) - whole).max()
            print(f"{kv_cache_dtype}: log-probabilities up to {worst:.2g} off")
            self.assertLessEqual(least, worst)
            self.assertLess(worst, most)
        status, text = self.cluster.request("GET", "/metrics")
        self.assertEqual(status, 200)
        bytes_of = {m: float(re.search(rf'espalier_kv_cache_bytes{{model_name="{m}"}} (\S+)', text)[1])
                    for m in ("kept", "kept-f16", "kept-int8")}
        self.assertEqual(bytes_of["kept-f16"] * 2, bytes_of["kept"])
        self.assertLess(bytes_of["kept-int8"], bytes_of["kept-f16"])
        self.refused("kept", "fp4", "int8", flags=["--kv-cache=fp4", "--name=other"])
        self.refused("kept", "resident_weight_bytes", flags=["--resident-weights=1000", "--name=other"])

    def test_quantized_artifact_matches_quantizing_at_load(self):
        self.upload("unpacked", weights())
        for weights_format in ("int8", "int4"):
            at_load, once = "at-load-" + weights_format, "once-" + weights_format
            self.cluster.cli("serve", "unpacked", "--name=" + at_load, "--weights=" + weights_format)
            made = self.cluster.run("models", "quantize", "unpacked", "--weights=" + weights_format, "--out=" + once)
            self.assertIn("config.json", made["files"])
            self.assertEqual(self.cluster.run("serve", once)["weights"], weights_format)
            np.testing.assert_array_equal(self.prompt_logprobs(once), self.prompt_logprobs(at_load))
        self.refused("once-int8", "int8", "f32", flags=["--weights=f32", "--name=other"])
        for wrong in (["once-int8", "--weights=int4", "--out=twice"], ["unpacked", "--weights=bf16", "--out=x"],
                      ["unpacked", "--weights=int8", "--out=once-int8"], ["nothing", "--weights=int8", "--out=x"]):
            with self.assertRaises(Failed):
                self.cluster.cli("models", "quantize", *wrong)

    def warnings(self, *parts):
        with open(self.cluster.logs[0], errors="replace") as log:
            return [line for line in log if all(part in line for part in ("warn", *parts))]

    def test_longrope_depends_on_the_served_sequence_length(self):
        scaling = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "attention_factor": 1.0}
        self.upload("long", weights(), rope_scaling=scaling, original_max_position_embeddings=64)
        self.upload("as-short", weights())
        self.upload("as-long", weights(), rope_scaling={"rope_type": "linear", "factor": 4.0})
        self.cluster.cli("serve", "long", "--name=long-short", "--max-sequence-length=64")
        self.assertEqual(self.warnings("artifact long:"), [])
        self.cluster.cli("serve", "long")
        self.assertIn("max_sequence_length of 64", self.warnings("artifact long")[0])
        for name in ("as-short", "as-long"):
            self.cluster.cli("serve", name)
        by_short, by_long = self.prompt_logprobs("as-short"), self.prompt_logprobs("as-long")
        self.assertGreater(np.abs(by_short - by_long).max(), 1e-3)
        np.testing.assert_allclose(self.prompt_logprobs("long-short"), by_short, atol=1e-5)
        np.testing.assert_allclose(self.prompt_logprobs("long"), by_long, atol=1e-5)

    def test_dynamic_ntk_applies_to_longer_sequences_only(self):
        positions = CONFIG["max_position_embeddings"]
        self.upload("not-scaled", weights())
        self.upload("dynamic", weights(), rope_scaling={"rope_type": "dynamic", "factor": 4.0})
        self.assertEqual(self.cluster.run("serve", "dynamic")["max_sequence_length"], positions)
        longer = self.cluster.run("serve", "dynamic", "--name=dynamic-long", f"--max-sequence-length={2 * positions}")
        self.assertEqual(longer["max_sequence_length"], 2 * positions)
        self.cluster.cli("serve", "not-scaled")
        plain = self.prompt_logprobs("not-scaled")
        np.testing.assert_array_equal(self.prompt_logprobs("dynamic"), plain)
        self.assertGreater(np.abs(self.prompt_logprobs("dynamic-long") - plain).max(), 1e-4)
        self.assertIn(f"max_sequence_length of {positions}", self.warnings("artifact dynamic")[0])

    def test_ignored_generation_config_fields_are_reported(self):
        folder = os.path.join(self.folder.name, "wordy")
        write_model(folder, weights())
        with open(os.path.join(folder, "generation_config.json"), "w") as file:
            json.dump({"temperature": 0.5, "min_new_tokens": 3, "max_length": 64, "num_beams": 4}, file)
        self.cluster.cli("models", "upload", "wordy", folder)
        quiet = self.cluster.cli("serve", "wordy", "--name=wordy-not", "--generation-config=none")
        self.assertNotIn("warning", quiet.stdout)
        self.assertEqual(self.warnings("wordy", "have no effect"), [])
        told = self.cluster.cli("serve", "wordy").stdout
        self.assertIn("warning: the model's generation_config.json has max_length, num_beams, which has no effect here", told)
        self.assertEqual(self.cluster.run("serve", "wordy")["ignored_generation_fields"], ["max_length", "num_beams"])
        self.assertEqual(len(self.warnings("model wordy", "max_length, num_beams, which have no effect")), 1)

    def test_verify_lossless_before_serving(self):
        self.upload("proven", weights())
        small = os.path.join(self.folder.name, "small")
        write_model(small, {name: value * 1.1 for name, value in weights().items()})
        proof = ["verify-lossless", "--llm=proven", "--ssm=" + small, "--draws=2000"]
        shape = "--expansion=1,2,1"
        for flags in ([shape], [shape, "--weights=int8", "--ssm-weights=int4"], ["--tune", "--ngram=4"]):
            report = self.cluster.run(*proof, *flags)
            self.assertEqual([c["name"] for c in report["checks"]], ["greedy", "seeds", "penalties", "enumeration", "distribution", "KV"])
            self.assertTrue(report["passed"], report)
            print(f"{flags}: {report['accepted_per_step']:.2f} accepted per step, {report['seconds']:.1f} s")
        self.assertIn("passed", self.cluster.cli(*proof, shape).stdout)
        served = {model["name"] for model in self.cluster.run("serve")["models"]}
        self.assertNotIn("proven", served)
        names = {artifact["name"] for artifact in self.cluster.run("models")["artifacts"]}
        self.assertFalse([name for name in names if name.startswith("borrowed-")])
        self.assertEqual(self.cluster.cli("verify-lossless", "--llm=proven", "--ssm=nobody", check=False).returncode, 4)

    def test_ssm_with_short_context_is_rejected(self):
        self.upload("far", weights())
        self.upload("near", weights(), max_position_embeddings=8)
        for flags in ([], ["--expansion=1,1,1"], ["--ngram=0"]):
            self.refused("far", "'near'", "8 positions", "128 tokens", "--max-sequence-length=8", "--short-ssms",
                         flags=["--ssm=near", *flags])
        proof = self.cluster.cli("verify-lossless", "--llm=far", "--ssm=near", check=False)
        self.assertIn("8 positions", proof.stderr)
        self.cluster.cli("serve", "far", "--name=far-as-near", "--ssm=near", "--max-sequence-length=8")
        served = self.cluster.run("serve", "far", "--name=far-meant", "--ssm=near", "--ngram=0", "--short-ssms")
        self.assertEqual(served["ssm_placements"][0]["draft_tokens"], 8)
        self.assertIn("near (up to 8 tokens)", self.cluster.cli("serve").stdout)
        body = {"model": "far-meant", "prompt": "In the", "max_tokens": 4, "temperature": 0, "speculation": True}
        self.assertEqual(self.cluster.request("POST", "/v1/completions", json.dumps(body))[0], 200)
        status, text = self.cluster.request("POST", "/v1/completions", json.dumps({**body, "prompt": "In the beginning " * 4}))
        self.assertNotEqual(status, 200)
        self.assertIn("the prompt has ", text)
        self.assertIn("at most 8", text)

    def test_ssm_with_another_vocabulary_is_rejected(self):
        self.upload("target", weights())
        more = weights()
        more["model.embed_tokens.weight"] = np.zeros((300, HIDDEN), np.float32)
        self.upload("wider", more, vocab_size=300)
        tokens = [LETTERS[byte] for byte in range(256)]
        turned = [*tokens[:65], "B", "A", *tokens[67:]]
        for name, spelled in (("spelled", tokens), ("turned", turned)):
            folder = os.path.join(self.folder.name, name)
            write_model(folder, weights(), tokenizer=None)
            write_tokenizer(folder, spelled)
            self.cluster.cli("models", "upload", name, folder)
        for flags in ([], ["--expansion=1,1,1"], ["--ssm-weights=int8"]):
            self.refused("target", "'wider'", "300 tokens", "'target' of 256", flags=["--ssm=wider", *flags])
            self.refused("spelled", 'token 65 is "B" in \'turned\'', '"A" in the LLM \'spelled\'',
                         flags=["--ssm=turned", *flags])
        served = {model["name"] for model in self.cluster.run("serve")["models"]}
        self.assertFalse(served & {"target", "wider", "spelled", "turned"})
        # By themselves nothing is wrong with them.
        for llm, ssm in (("spelled", "target"), ("turned", "turned"), ("wider", "wider")):
            self.cluster.cli("serve", llm, "--name=good-" + llm, "--ssm=" + ssm)

    def refused(self, name, *parts, flags=()):
        with self.assertRaises(Failed) as caught:
            self.cluster.cli("serve", name, *flags)
        for part in parts if flags else (name, *parts):
            self.assertIn(part, caught.exception.err)

    def test_invalid_folders_are_rejected_by_name(self):
        missing = weights()
        del missing["model.layers.1.self_attn.q_norm.weight"]
        self.upload("missing", missing)
        self.refused("missing", "model.layers.1.self_attn.q_norm.weight")
        extra = weights()
        extra["model.layers.1.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
        self.upload("extra", extra)
        self.refused("extra", "model.layers.1.self_attn.q_proj.bias")
        shape = weights()
        shape["model.norm.weight"] = np.zeros(31, np.float32)
        self.upload("shape", shape)
        self.refused("shape", "model.norm.weight", "31", "32")
        self.upload("switch", weights(), rope_scaling={"rope_type": "magic"})
        self.refused("switch", "rope_scaling.rope_type", "magic", "yarn")
        self.upload("family", weights(), architectures=["BloomForCausalLM"])
        self.refused("family", "BloomForCausalLM", "Qwen3ForCausalLM")


if __name__ == "__main__":
    unittest.main()
