"""Boost-tuning on real processes: SSMs trained on an LLM's outputs have a higher acceptance rate, also after crashes."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, Failed  # noqa: E402
from language_models import TEXT, train  # noqa: E402

SHAPE = "llama:hidden={},layers=1,heads=4,kv_heads=2,intermediate={},positions=256"
BOOST = ("-d", TEXT, "--prompt-tokens=16", "--max-prompts=240", "--continuation-tokens=16", "--holdout=0.1", "--steps=150",
         "-b", "16", "--lr=4e-3", "--clip-norm=1", "--seed=5", "--expansion=1,1,1,1")


class BoostTuning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        train(cls.cluster, "llm", hidden=64, layers=2, steps=150)
        train(cls.cluster, "ssm", hidden=32, layers=1, steps=30)

    def boosts(self):
        return {job["id"]: job for job in self.cluster.run("boost-tune", "--list")["jobs"]}

    def trainings(self, name):
        return [j for j in self.cluster.run("jobs")["jobs"] if j["spec"]["name"].startswith(name)]

    def check(self, job, name):
        self.assertEqual(job["state"], "DISTILLATION_SUCCEEDED", job)
        self.assertEqual([ssm["output"] for ssm in job["ssms"]], [f"{name}-1", f"{name}-2"])
        first, second = job["ssms"]
        self.assertEqual(first["samples"], job["samples"])
        self.assertGreater(first["learned"], 0)
        self.assertEqual(second["samples"], job["samples"] - first["learned"], "the second had what the first did not learn")
        worth = {}
        for who, what in (("first", first), ("second", second), ("merged", job)):
            worth[who] = [what[when]["tokens_per_verification"] for when in ("before", "after")]
        print(json.dumps({"samples": job["samples"], "learned": [ssm["learned"] for ssm in job["ssms"]], **worth}))
        for who in ("first", "merged"):
            self.assertGreater(worth[who][1], worth[who][0], f"{who} drafts better than before, on prompts it never saw")
        # The second one alone need not: it is for what the first one does not say.
        self.assertGreater(worth["merged"][1], worth["first"][1], "two trees hit more than one")
        return worth

    def generated_tokens(self, model):
        return sum(float(line.split()[-1]) for line in self.cluster.get("/metrics")[1].splitlines()
                   if line.startswith("espalier_generation_tokens_total") and f'"{model}"' in line)

    def test_1_two_ssms_survive_two_coordinator_crashes(self):
        cluster = self.cluster
        # So many steps that even the second one, which has few samples, can be met in its middle; so small that the first one
        # leaves it something to learn.
        boost = cluster.run("boost-tune", "llm", "--ssm=ssm", "--ssm=ssm", "--name=drafts", "--detach", *BOOST,
                            "--steps=500", "--lr=6e-4")["id"]
        job = self.boosts()[boost]
        self.assertEqual((job["prompts"], job["held_out"]), (216, 24))
        for stage in ("training drafts-1", "training drafts-2"):
            def reached(stage=stage):
                now = self.boosts()[boost]
                self.assertNotEqual(now["state"], "DISTILLATION_FAILED", now)
                return now["stage"] == stage and now["done"] > 5
            cluster.wait(reached, 120, stage)
            cluster.kill(cluster.daemon)
            cluster.start_daemon()
        job = cluster.run("boost-tune", f"--watch={boost}")
        worth = self.check(job, "drafts")
        # Nothing was done twice.
        trainings = self.trainings("drafts-")
        self.assertEqual(sorted(t["id"] for t in trainings), sorted(ssm["job_id"] for ssm in job["ssms"]))
        self.assertTrue(all(t["attempts"] > 1 for t in trainings), "both were killed in their middle")

        # What was found lies beside the models, which serve.
        artifacts = {a["name"]: a for a in cluster.run("models")["artifacts"]}
        self.assertEqual(artifacts["drafts-1"]["metadata"]["boost"], boost)
        self.assertFalse([name for name in artifacts if ".round-" in name], "what it trained on is gone")
        folder = os.path.join(cluster.folder, "downloaded")
        cluster.cli("models", "download", "drafts-2", folder)
        with open(os.path.join(folder, "boost_tuning.json")) as file:
            report = json.load(file)
        self.assertEqual(report["after"]["tokens_per_verification"], worth["merged"][1])
        cluster.run("serve", "llm", "--ssm=drafts-1", "--ssm=drafts-2", "--expansion=1,1,1")
        out = cluster.run("generate", "llm", "In the beginning", "--max-tokens=32", "--compare")
        self.assertTrue(out["identical"], out)
        cluster.run("unserve", "llm")

    def test_2_json_prompts_random_ssm_and_served_llm(self):
        cluster = self.cluster
        with open(TEXT) as file:
            text = file.read()
        path = os.path.join(cluster.folder, "prompts.json")
        with open(path, "w") as file:
            json.dump([text[i * 90:i * 90 + 20] for i in range(100)], file)
        cluster.run("serve", "llm")
        before = self.generated_tokens("llm")
        done = cluster.cli("boost-tune", "llm", "--model=" + SHAPE.format(32, 64), f"--prompts={path}", "--name=fresh",
                           "--continuation-tokens=16", "--steps=60", "--lr=4e-3", "--temperature=0.7").stdout
        self.assertIn("fresh-1", done)
        self.assertIn("random", done)
        job = [job for job in self.boosts().values() if job["spec"]["name"] == "fresh"][0]
        self.assertEqual((job["state"], job["prompts"], job["held_out"]), ("DISTILLATION_SUCCEEDED", 90, 10))
        self.assertNotIn("before", job["ssms"][0])
        self.assertGreater(job["ssms"][0]["after"]["tokens_per_verification"], 1)
        self.assertGreaterEqual(self.generated_tokens("llm") - before, 90 * 16, "the engine that serves made the continuations")
        cluster.run("unserve", "llm")

    def test_3_cancelled_and_resumed(self):
        cluster = self.cluster
        boost = cluster.run("boost-tune", "llm", "--ssm=ssm", "--name=again", "--detach", *BOOST)["id"]
        cluster.wait(lambda: self.boosts()[boost]["stage"] == "training again-1", 60, "it trains")
        self.assertEqual(cluster.run("boost-tune", f"--cancel={boost}")["state"], "DISTILLATION_CANCELLED")
        cluster.wait(lambda: self.trainings("again-")[0]["state"] == "CANCELLED", 30, "its training is cancelled too")
        self.refused("already", f"--cancel={boost}")
        def resumed():
            return cluster.cli("boost-tune", f"--resume={boost}", check=False).returncode == 0
        cluster.wait(resumed, 120, "it goes on")
        job = self.boosts()[boost]
        self.assertEqual(job["state"], "DISTILLATION_SUCCEEDED", job)
        self.assertEqual(len(self.trainings("again-")), 1)

    def refused(self, what, *args, code=1):
        done = self.cluster.cli("boost-tune", *args, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(what, done.stderr)

    def test_4_invalid_specs_are_rejected_before_running(self):
        before = len(self.boosts())
        some = ("-d", TEXT, "--continuation-tokens=8")
        self.refused("which SSMs?", "llm", *some, code=2)
        self.refused("which prompts?", "llm", "--ssm=ssm", code=2)
        self.refused("'nobody'", "nobody", "--ssm=ssm", *some, code=4)
        self.refused("'nobody'", "llm", "--ssm=ssm", "--ssm=nobody", *some, code=4)
        empty = os.path.join(self.cluster.folder, "empty.json")
        for text, what in (("[]", "at least one"), ("[1]", "prompts[0]"), ("{", "JSON list")):
            with open(empty, "w") as file:
                file.write(text)
            self.refused(what, "llm", "--ssm=ssm", f"--prompts={empty}")
        self.cluster.wait_for_job(self.cluster.train("--model=llama:tiny,vocab=300", "-d", TEXT, "--steps=1", "--name=other"))
        self.refused("300 tokens, the LLM 'llm' of 256", "llm", "--ssm=other", *some)
        self.refused("vocabulary", "llm", "--model=llama:tiny,vocab=300", *some)
        self.refused("'llm' has 256 positions", "llm", "--ssm=ssm", "-d", TEXT, "--continuation-tokens=300")
        self.refused("name", "llm", "--ssm=ssm", "--name=a//b", *some)
        self.refused("soft-labels", "llm", "--ssm=ssm", "--soft-labels=65", *some, code=2)
        self.refused("expansion", "llm", "--ssm=ssm", "--expansion=1,0", *some, code=2)
        self.refused("no boost-tuning 'boost-999'", "--watch=boost-999", code=4)
        self.assertEqual(len(self.boosts()), before)

    def test_5_training_starts_from_an_artifact(self):
        cluster = self.cluster
        evaluated = [j for j in cluster.run("jobs")["jobs"] if j["spec"]["name"] == "llm"][0]["evaluation"]["loss"]
        more = ("-d", TEXT, "--sequence-length=48", "-b", "16", "--steps=3", "--lr=1e-6")
        # Its own model, whole and with its parameters cut over the workers.
        for flags in ((), ("--pipeline-stages=2",), ("--zero-stage=3",)):
            job = cluster.train("--init=llm", "--name=more", *more, *flags)
            self.assertEqual(cluster.wait_for_job(job)["state"], "SUCCEEDED", cluster.job(job))
            self.assertAlmostEqual(cluster.losses(job)[0], evaluated, delta=0.25, msg=flags)
        with self.assertRaises(Failed) as caught:
            cluster.train("--init=llm", "--model=" + SHAPE.format(64, 128), *more)
        self.assertIn("model.layers.1", caught.exception.err)
        with self.assertRaises(Failed) as caught:
            cluster.train("--init=llm", "--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=64", *more)
        for part in ("mlp", "[128, 64]", "[64, 64]"):
            self.assertIn(part, caught.exception.err)
        with self.assertRaises(Failed) as caught:
            cluster.train("--init=nobody", *more)
        self.assertIn("nobody", caught.exception.err)

    def with_tokenizer(self, name, spellings):
        """The LLM under another name, with a tokenizer.json in which token i is spelled so."""
        folder = os.path.join(self.cluster.folder, name)
        self.cluster.cli("models", "download", "llm", folder)
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
        del config["tokenizer"]
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                       "decoder": level, "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(spellings)},
                                                   "merges": []}}, file)
        self.cluster.cli("models", "upload", name, folder)

    def test_6_tokenizers_are_compared_and_copied(self):
        cluster = self.cluster
        # How byte-level vocabularies spell bytes.
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        spelled = [chr(b) if b in plain else chr(256 + [x for x in range(256) if x not in plain].index(b)) for b in range(256)]
        self.with_tokenizer("wordy", spelled)
        self.with_tokenizer("turned", spelled[:97] + [spelled[98], spelled[97]] + spelled[99:])
        some = ("-d", TEXT, "--continuation-tokens=8", "--max-prompts=40", "--steps=5")
        self.refused('token 97 is "b" in \'turned\', "a" in the LLM \'wordy\'', "wordy", "--ssm=turned", *some)
        # Nor does one draft for the other, or prove anything of it.
        for command in (["serve", "wordy", "--name=mixed"], ["verify-lossless", "--llm=wordy"]):
            refused = cluster.cli(*command, "--ssm=turned", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn('token 97 is "b" in \'turned\'', refused.stderr)
        # Bytes are the same tokens by another name.
        job = cluster.run("boost-tune", "wordy", "--ssm=ssm", "--model=" + SHAPE.format(32, 64), "--name=named", *some)
        self.assertEqual(job["state"], "DISTILLATION_SUCCEEDED", job)
        texts = {}
        for name in ("wordy", "named-1", "named-2"):
            folder = os.path.join(cluster.folder, f"{name}-files")
            cluster.cli("models", "download", name, folder)
            for file in ("config.json", "tokenizer.json"):
                with open(os.path.join(folder, file)) as text:
                    texts[name, file] = text.read()
        self.assertEqual(json.loads(texts["named-1", "config.json"])["tokenizer"], "bytes", "it goes on as it began")
        self.assertNotEqual(texts["named-1", "tokenizer.json"], texts["wordy", "tokenizer.json"])
        self.assertNotIn("tokenizer", json.loads(texts["named-2", "config.json"]), "a new one has the LLM's")
        self.assertEqual(texts["named-2", "tokenizer.json"], texts["wordy", "tokenizer.json"])
        # A text is the tokens of the model's tokenizer: here one for each byte.
        more = cluster.wait_for_job(cluster.train("--init=wordy", "-d", TEXT, "--steps=1"))
        self.assertEqual(more["state"], "SUCCEEDED", more)
        self.assertIn(f"the text is {os.path.getsize(TEXT)} tokens of the tokenizer of 'wordy", "\n".join(more["notes"]))

    def config(self, name, **fields):
        """A config.json of one layer over bytes."""
        path = os.path.join(self.cluster.folder, f"{name}.json")
        with open(path, "w") as file:
            json.dump({"vocab_size": 256, "tokenizer": "bytes", "eos_token_id": None, **fields}, file)
        return path

    def test_7_models_of_other_families(self):
        cluster = self.cluster
        qwen = self.config("qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                           num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
        gpt2 = self.config("gpt2", architectures=["GPT2LMHeadModel"], n_embd=32, n_layer=1, n_head=4, n_positions=256)
        trained = cluster.train(f"--model={qwen}", "-d", TEXT, "--sequence-length=48", "-b", "16", "--steps=30", "--lr=5e-3", "--name=qwen")
        self.assertEqual(cluster.wait_for_job(trained)["state"], "SUCCEEDED", cluster.job(trained))
        job = cluster.run("boost-tune", "llm", "--ssm=qwen", f"--model={gpt2}", "--name=mixed", "--soft-labels=8", *BOOST)
        self.assertEqual(job["state"], "DISTILLATION_SUCCEEDED", job)
        first = job["ssms"][0]
        self.assertGreater(first["after"]["tokens_per_verification"], first["before"]["tokens_per_verification"])
        families = {a["name"]: a["metadata"]["family"] for a in cluster.run("models")["artifacts"] if a["name"].startswith("mixed-")}
        self.assertEqual(families, {"mixed-1": "qwen2", "mixed-2": "gpt2"})
        cluster.run("serve", "llm", "--ssm=mixed-1", "--ssm=mixed-2", "--expansion=1,1,1")
        out = cluster.run("generate", "llm", "In the beginning", "--max-tokens=32", "--compare")
        self.assertTrue(out["identical"], out)
        cluster.run("unserve", "llm")

        # What the families' graphs have besides LLaMA's is cut over workers as it is.
        more = ("--init=mixed-2", "-d", TEXT, "--sequence-length=48", "-b", "16", "--steps=4", "--lr=1e-3", "--name=more-2")
        alone = None
        for flags in ((), ("--pipeline-stages=2", "--micro-batches=2"), ("--zero-stage=3",)):
            done = cluster.train(*more, *flags)
            self.assertEqual(cluster.wait_for_job(done)["state"], "SUCCEEDED", cluster.job(done))
            losses = cluster.losses(done)
            alone = alone or losses
            self.assertEqual(len(losses), 4)
            for step, loss in losses.items():
                self.assertAlmostEqual(loss, alone[step], delta=1e-5 * loss, msg=flags)

        some = ("-d", TEXT, "--continuation-tokens=8")
        mixture = self.config("mixtral", architectures=["MixtralForCausalLM"], hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
        self.refused("mixture of experts", "llm", f"--model={mixture}", *some, code=2)
        cluster.run("models", "quantize", "ssm", "--weights=int8", "--out=ssm-int8")
        self.refused("packed in 8 bits", "llm", "--ssm=ssm-int8", *some)



if __name__ == "__main__":
    unittest.main()
