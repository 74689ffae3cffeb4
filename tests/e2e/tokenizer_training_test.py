"""Models that are trained from scratch with a tokenizer: what is registered, served and downloaded has it, and texts are
trained on as the tokens of Hugging Face's `tokenizers`."""
import json
import os
import random
import struct
import sys
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
import tokenizer_environment  # noqa: E402

if __name__ == "__main__":
    tokenizer_environment.enter()

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from cluster import DATA, Cluster, Failed, read  # noqa: E402

# As a user brought it.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 600,
          "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32"}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
SENTENCE = "In the beginning God created the heaven and the earth."


def tokenizer_of(size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([os.path.join(DATA, "genesis.txt")], trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<s>", "</s>"]))
    return tokenizer


def write_npz(path, rows):
    """Lists of lists of int32."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in rows.items():
            header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({len(values)}, {len(values[0])}), }}"
            header += " " * (-(len(header) + 11) % 64) + "\n"
            data = b"".join(struct.pack(f"<{len(row)}i", *row) for row in values)
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)


def read_npz(path):
    with zipfile.ZipFile(path) as archive:
        columns = {}
        for name in archive.namelist():
            file = archive.read(name)
            data = file[10 + struct.unpack("<H", file[8:10])[0]:]
            columns[name[:-4]] = list(struct.unpack(f"<{len(data) // 4}i", data))
        return columns


class TokenizerTrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1).__enter__()
        cls.tokenizer = tokenizer_of(600)
        cls.config = cls.file("config.json", json.dumps(CONFIG))
        cls.folder = os.path.join(cls.cluster.folder, "tokenizer")
        cls.files = {"tokenizer.json": cls.tokenizer.to_str(),
                     "tokenizer_config.json": json.dumps({"bos_token": "<s>", "eos_token": "</s>"}),
                     "special_tokens_map.json": json.dumps({"eos_token": "</s>"}), "chat_template.jinja": TEMPLATE}
        # Of the model that it is taken from.
        others = {"model.safetensors": "weights", "config.json": "{}", "README.md": "of another model"}
        for name, text in {**cls.files, **others}.items():
            cls.file(os.path.join("tokenizer", name), text)
        cls.documents = cls.file("documents.txt", (SENTENCE + "</s>") * 400)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None)

    @classmethod
    def file(cls, name, text):
        path = os.path.join(cls.cluster.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def trained(self, *flags):
        job = self.cluster.wait_for_job(self.cluster.train(*flags))
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        return job

    def downloaded(self, name):
        folder = os.path.join(self.cluster.folder, "downloads", name)
        self.cluster.cli("models", "download", name, folder)
        return folder

    def check_files(self, model):
        folder = self.downloaded(model)
        for name, text in self.files.items():
            self.assertEqual(read(os.path.join(folder, name)), text, name)
        self.assertEqual(sorted(os.listdir(folder)), sorted([*self.files, "config.json", "model.safetensors"]))

    def post(self, path, **body):
        status, text = self.cluster.request("POST", path, json.dumps(body))
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def ids(self, model, text):
        return self.post("/tokenize", model=model, prompt=text, add_special_tokens=False)["tokens"]

    def test_a_model_of_arrays_is_served_with_its_tokenizer(self):
        chance = random.Random(1)
        rows = [[chance.randrange(600) for _ in range(17)] for _ in range(40)]
        write_npz(os.path.join(self.cluster.folder, "tok.npz"), {"tokens": [r[:-1] for r in rows], "targets": [r[1:] for r in rows]})
        job = self.trained(f"--model={self.config}", "-d", os.path.join(self.cluster.folder, "tok.npz"), "-b", "4", "--steps=6",
                           "--name=m", f"--tokenizer={self.folder}")
        self.assertEqual(job.get("notes", []), [], "config.json and the tokenizer agree")
        self.check_files("m")
        self.cluster.cli("serve", "m")
        for text in (SENTENCE, "thé 漢字  12", read(os.path.join(DATA, "genesis.txt"))[:900]):
            self.assertEqual(self.ids("m", text), self.tokenizer.encode(text).ids)
        answer = self.post("/v1/completions", model="m", prompt="In the", max_tokens=4, temperature=0, logprobs=1)["choices"][0]
        self.assertGreater(len(answer["logprobs"]["tokens"]), 0)
        chat = self.post("/v1/chat/completions", model="m", max_tokens=4, temperature=0, seed=1,
                         messages=[{"role": "user", "content": "In the"}])
        self.assertEqual(chat["choices"][0]["message"]["content"], answer["text"], "the template adds nothing")
        info = json.loads(self.cluster.get("/tokenizer_info?model=m")[1])
        self.assertEqual((info["eos_token"], info["chat_template"]), ("</s>", TEMPLATE))

    def test_a_text_is_trained_on_in_tokens(self):
        flags = ("--sequence-length=24", "-b", "16", "--steps=150", "--lr=1e-2", "--clip-norm=1")
        job = self.trained(f"--model={self.config}", f"--tokenizer={self.folder}", "-d", self.documents, *flags, "--name=words")
        ids = self.tokenizer.encode(read(self.documents), add_special_tokens=False).ids
        notes = "\n".join(job["notes"])
        self.assertIn(f"the text is {len(ids)} tokens", notes)
        self.assertIn('"</s>" is in it 400 times', notes)
        tokens = job["spec"]["dataset"]["uri"].removeprefix("artifact:")
        columns = read_npz(os.path.join(self.downloaded(tokens), "tokens.npz"))
        seen = len(columns["tokens"])
        self.assertEqual(columns, {"tokens": ids[:seen], "targets": ids[1:seen + 1]})
        self.assertEqual(seen, (len(ids) - 1) // 24 * 24)
        self.check_files("words")

        # What it has memorized comes back as these tokens, and ends.
        self.cluster.cli("serve", "words")
        begin, rest = SENTENCE[:16], SENTENCE[16:]
        answer = self.post("/v1/completions", model="words", prompt=begin, max_tokens=40, temperature=0, return_token_ids=True)
        choice = answer["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), (rest, "stop"))
        expected = self.tokenizer.encode(SENTENCE + "</s>").ids
        self.assertEqual(choice["prompt_token_ids"] + choice["token_ids"], expected)

        # It is trained on in the same tokens, which are made and kept once.
        more = self.trained("--init=words", "-d", self.documents, "--sequence-length=24", "-b", "16", "--steps=3", "--lr=1e-4",
                            "--name=more")
        self.assertEqual(more["spec"]["dataset"]["uri"], "artifact:" + tokens)
        self.assertLess(self.cluster.losses(more["id"])[0], 0.5)
        self.check_files("more")

    def test_what_does_not_fit_is_refused_before_it_is_queued(self):
        cluster = self.cluster
        before = len(cluster.run("jobs").get("jobs", []))
        large = os.path.join(cluster.folder, "large")
        os.makedirs(large)
        tokenizer_of(620).save(os.path.join(large, "tokenizer.json"))
        sentencepiece = os.path.join(cluster.folder, "sentencepiece")
        self.file("sentencepiece/tokenizer.model", "x")
        some = ("-d", self.documents, "--steps=1")
        for flags, parts in (
                ((f"--model={self.config}", f"--tokenizer={large}"), ("up to 619", "vocab_size of 600", "at least 620")),
                ((f"--model={self.config}", f"--tokenizer={sentencepiece}"), ("no tokenizer.json", "save_pretrained")),
                ((f"--model={self.config}", "--tokenizer=nobody"), ("'nobody'",)),
                (("--model=llama:tiny", f"--tokenizer={self.folder}"), ("up to 599", "vocab_size of 256", "vocab=600")),
        ):
            for dry in ((), ("--dry-run",)):
                done = cluster.cli("train", *flags, *some, *dry, check=False)
                self.assertNotEqual(done.returncode, 0)
                for part in parts:
                    self.assertIn(part, done.stdout + done.stderr, (flags, dry))
        self.assertEqual(len(cluster.run("jobs").get("jobs", [])), before)
        # A preset of that vocabulary has no bytes.
        fits = cluster.cli("train", "--model=llama:tiny,vocab=600", f"--tokenizer={self.folder}", *some, "--dry-run")
        self.assertIn("tokens of the tokenizer", fits.stdout)

    def test_the_tokenizer_outlives_a_restart_and_belongs_to_its_job(self):
        cluster = self.cluster
        cluster.cli("models", "upload", "tok", self.folder)
        job = cluster.train(f"--model={self.config}", "--tokenizer=tok", "-d", self.documents, "--sequence-length=24", "-b", "64",
                            "--steps=1500", "--checkpoint-every=50", "--name=restarted")
        cluster.wait_for_step(job, 60)
        with self.assertRaises(Failed) as caught:
            cluster.cli("models", "delete", "tok")
        self.assertIn(job, caught.exception.err)
        cluster.kill(cluster.daemon)
        cluster.start_daemon()
        done = cluster.wait_for_job(job)
        self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
        self.assertGreater(int(done["attempts"]), 1)
        self.check_files("restarted")


if __name__ == "__main__":
    unittest.main()
