"""Our tokenizers return the tokens and texts of Hugging Face's `tokenizers`, over model styles, languages and adversarial
Unicode; every code point passes every normalizer and pre-tokenizer with equal results."""

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tokenizer_environment  # noqa: E402

if __name__ == "__main__":
    tokenizer_environment.enter()

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers  # noqa: E402

import tokenizer_corpus  # noqa: E402
import tokenizer_gguf  # noqa: E402
import tokenizer_models  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
RUNNER = os.environ.get("ESPALIER_TOKENIZER_RUNNER") or os.path.join(HERE, "tokenizer_runner")
# CI takes a half of the lines, and shorter long ones; with $ESPALIER_TEST_ALL set, all are compared.
PART = 1 if os.environ.get("ESPALIER_TEST_ALL") else 2
STYLES = os.environ.get("ESPALIER_STYLES", ",".join(tokenizer_models.STYLES)).split(",")


class Runner:
    def __init__(self):
        self.process = subprocess.Popen([RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the runner died (exit {self.process.wait()})")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class TokenizersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.runner = Runner()
        cls.training = tokenizer_corpus.translations(3000, seed=2) + tokenizer_corpus.bible(2000)
        cls.lines = tokenizer_corpus.translations(6000 // PART) + tokenizer_corpus.bible(1500 // PART) + tokenizer_corpus.hostile(4000 // PART)
        cls.long = tokenizer_corpus.long_lines(spaces=1_000_000 if PART == 1 else 200_000)
        cls.trained = {}

    @classmethod
    def tearDownClass(cls):
        cls.runner.close()

    def load(self, tokenizer, **files):
        return self.runner(load={"tokenizer_json": tokenizer.to_str(), **files})

    def first_difference(self, style, texts, ours, theirs):
        for text, a, b in zip(texts, ours, theirs):
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                differing = sum(x != y for x, y in zip(ours, theirs))
                self.fail(
                    f"{style}: {differing} of {len(texts)} texts differ, the first {text[:300]!r} at {at}: "
                    f"ours {a[max(0, at - 3) : at + 8]}, theirs {b[max(0, at - 3) : at + 8]}"
                )

    def train(self, style):
        """A style's tokenizer, trained once: tests of formats share it with the test of the style."""
        if style not in self.trained:
            self.trained[style] = style(self.training).to_str()
        return Tokenizer.from_str(self.trained[style])

    def check_style(self, style):
        tokenizer = self.train(tokenizer_models.STYLES[style])
        self.load(tokenizer)
        self.check(style, tokenizer)

    def check(self, style, tokenizer, every=1):
        """The loaded tokenizer against the library's, on `every` n-th line; on all and the long ones by default."""
        lines = self.lines[::every] + (self.long if every == 1 and style not in ("words",) else [])
        for special in (False, True):
            tokenizer.encode_special_tokens = not special
            # Fast: without offsets, which are not compared.
            theirs = [e.ids for e in tokenizer.encode_batch_fast(lines, add_special_tokens=special)]
            ours = self.runner(encode=lines, add_special=special, parse_special=special)["ids"]
            self.first_difference(style, lines, ours, theirs)
        # `theirs` has special tokens. Sequences that no text gives decode, too.
        chance = random.Random(5)
        size = tokenizer.get_vocab_size()
        theirs += [[chance.randrange(size) for _ in range(chance.randrange(1, 30))] for _ in range(2000)]
        theirs = [ids for ids in theirs if ids and len(ids) < 50000]
        for show_special in (False, True):
            texts = [tokenizer.decode(ids, skip_special_tokens=not show_special) for ids in theirs]
            reply = self.runner(decode=theirs, show_special=show_special)
            self.first_difference(style, [str(ids[:60]) for ids in theirs], reply["texts"], texts)
            for text, pieces in zip(texts, reply["pieces"]):  # JSON carries valid UTF-8 alone
                self.assertEqual("".join(pieces), text)

    def test_gguf_tokenizers_match(self):
        """The library's tokenizer, written as llama.cpp's converter would, read back from there alone. A few of the lines:
        the tests of the styles take all of them through the same components."""
        tekken = tokenizer_models.split_style(tokenizer_models.TEKKEN, ignore_merges=True)
        styles = {
            "gpt-2": tokenizer_models.gpt2,
            "starcoder": tokenizer_models.starcoder,
            "smollm": tokenizer_models.starcoder,
            "llama-bpe": tokenizer_models.STYLES["llama3"],
            "qwen2": tokenizer_models.STYLES["qwen2"],
            "tekken": tekken,
            "mpt": tokenizer_models.neox,
            "falcon": tokenizer_models.falcon,
            "gpt-4o": tokenizer_models.STYLES["o200k"],
            "deepseek-v3": tokenizer_models.deepseek,
            "deepseek-llm": lambda lines: tokenizer_models.deepseek_first(
                lines, tokenizer_models.DEEPSEEK_LETTERS, tokenizer_models.DEEPSEEK_SIGNS, r"\p{N}+", [r"\s+$"]
            ),
            "deepseek-coder": lambda lines: tokenizer_models.deepseek_first(lines, r"\p{L}", r"\s?\p{P}+", r"\p{N}"),
        }
        with tempfile.TemporaryDirectory() as folder:
            for pre, style in styles.items():
                with self.subTest(pre=pre):
                    tokenizer = self.train(style)
                    bos = tokenizer.token_to_id("<|begin_of_text|>")
                    more = {} if bos is None else {"bos_token_id": bos, "add_bos_token": True}
                    tokenizer_gguf.byte_level(folder, tokenizer, pre, eos_token_id=0, **more)
                    reply = self.runner(load_folder=folder)
                    self.assertEqual((reply["bos"], reply["eos"]), (-1 if bos is None else bos, [0]))
                    self.check("gguf " + pre, tokenizer, every=6 // PART)
            with self.subTest("llama"):
                tokenizer = self.train(tokenizer_models.llama2)
                text = tokenizer_gguf.sentence_piece(folder, tokenizer, bos_token_id=1, eos_token_id=2, unknown_token_id=0)
                self.assertEqual(self.runner(load_folder=folder)["bos"], 1)
                self.check("gguf llama", Tokenizer.from_str(text), every=6 // PART)

    def test_unsupported_gguf_tokenizers_are_rejected_by_name(self):
        tokenizer = tokenizer_models.gpt2(self.training[:500])
        with tempfile.TemporaryDirectory() as folder:
            for entries, words in (
                ({"pre": "chameleon"}, ("tokenizer.ggml.pre", "chameleon", "llama-bpe")),
                ({"pre": 3}, ("tokenizer.ggml.pre", "string")),
                ({"pre": "gpt-2", "eos_token_id": 10**9}, ("eos_token_id", "below")),
                ({"pre": "gpt-2", "add_bos_token": "yes"}, ("add_bos_token", "true or false")),
            ):
                pre = entries.pop("pre")
                tokenizer_gguf.byte_level(folder, tokenizer, pre, **entries)
                with self.assertRaises(RuntimeError) as raised:
                    self.runner(load_folder=folder)
                for word in words:
                    self.assertIn(word, str(raised.exception))

    def test_byte_models_export_the_library_tokenizer(self):
        """What a model trained on bytes comes with: the library's ids are the bytes, as ours are, by our own reader, too."""
        files = self.runner(load_bytes=True)
        tokenizer = Tokenizer.from_str(files["tokenizer.json"])
        self.assertEqual(tokenizer.get_vocab_size(), 256)
        self.assertEqual(json.loads(files["tokenizer_config.json"])["tokenizer_class"], "PreTrainedTokenizerFast")
        lines = self.lines[::7] + ["", " ", "  two  spaces\n\n", "\x00\x7f", "<|endoftext|>"]
        theirs = [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=True)]
        self.first_difference("bytes", lines, self.runner(encode=lines, add_special=True)["ids"], theirs)
        self.assertEqual(theirs, [list(line.encode()) for line in lines])
        self.assertEqual(tokenizer.decode_batch(theirs), lines)
        self.runner(load={"tokenizer_json": files["tokenizer.json"]})
        self.first_difference("bytes", lines, self.runner(encode=lines, add_special=True)["ids"], theirs)
        self.first_difference("bytes", lines, self.runner(decode=theirs)["texts"], lines)

    def test_invalid_utf8_is_encoded(self):
        tokenizer = tokenizer_models.gpt2(self.training[:500])
        self.load(tokenizer)
        chance = random.Random(11)
        for _ in range(300):
            data = bytes(chance.choice([chance.randrange(256), chance.randrange(0x80, 0x100), 0xED, 0xA0]) for _ in range(chance.randrange(40)))
            ids = self.runner(encode_hex=data.hex())["ids"]
            self.assertEqual(ids, tokenizer.encode(data.decode(errors="replace")).ids)

    def test_streaming_holds_back_at_most_one_character(self):
        tokenizer = tokenizer_models.gpt2(self.training[:500])
        self.load(tokenizer)
        text = "plain words, " * 20
        pieces = self.runner(decode=[tokenizer.encode(text).ids])["pieces"][0]
        self.assertTrue(all(pieces[:-1]), "a token of ASCII leaves at once")

    def test_token_bytes_match_decoded_text(self):
        for style in ("gpt2", "gemma"):
            tokenizer = tokenizer_models.STYLES[style](self.training[:1000])
            self.load(tokenizer)
            text = "In the beginning 漢字 🏳️‍🌈 done"
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            data = b"".join(bytes.fromhex(x) for x in self.runner(token_bytes=ids)["hex"])
            self.assertEqual(data.decode(), text, style)

    def code_points(self):
        """All that have properties of their own; of ideographs, private use and what is not assigned, samples."""
        ranges = [
            (1, 0x3500),
            (0x4D00, 0x4F00),
            (0x9F00, 0xAC80),
            (0xD700, 0xD800),
            (0xE000, 0xE010),
            (0xF8F0, 0x17100),
            (0x18700, 0x20010),
            (0x2A6C0, 0x2A720),
            (0x2B730, 0x2B830),
            (0x2CE90, 0x2CEC0),
            (0x2EBD0, 0x2EE70),
            (0x2F7F0, 0x2FA30),
            (0x31340, 0x31360),
            (0x323A0, 0x323C0),
            (0x33470, 0x33490),
            (0xE0000, 0xE0200),
            (0xF0000, 0xF0004),
            (0x10FFF0, 0x110000),
        ]
        return [chr(c) for begin, end in ranges for c in range(begin, end)]

    def vocabulary(self):
        """A tokenizer whose tokens spell what it was given: every character is a token."""
        tokenizer = Tokenizer(models.BPE())
        data = json.loads(tokenizer.to_str())
        data["model"]["vocab"] = {c: i for i, c in enumerate(map(chr, (*range(0xD800), *range(0xE000, 0x30000))))}
        return Tokenizer.from_str(json.dumps(data))

    def test_normalizers_match_on_every_code_point(self):
        texts = ["a" + c for c in self.code_points()]
        tokenizer = self.vocabulary()
        for normalizer in (
            normalizers.NFC(),
            normalizers.NFD(),
            normalizers.NFKC(),
            normalizers.NFKD(),
            normalizers.Lowercase(),
            normalizers.StripAccents(),
            normalizers.Nmt(),
            normalizers.Strip(),
            normalizers.BertNormalizer(),
        ):
            with self.subTest(normalizer=str(normalizer)):
                tokenizer.normalizer = normalizer
                self.load(tokenizer)
                theirs = [e.ids for e in tokenizer.encode_batch_fast(texts)]
                self.first_difference(str(normalizer), texts, self.runner(encode=texts)["ids"], theirs)

    def test_pre_tokenizers_match_on_every_code_point(self):
        points = self.code_points()
        for splitter in (
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Punctuation("removed"),
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Digits(),
            pre_tokenizers.BertPreTokenizer(),
            pre_tokenizers.UnicodeScripts(),
            pre_tokenizers.Split(Regex(r"\w"), "removed"),
            pre_tokenizers.Split(Regex(r"\s"), "removed"),
            pre_tokenizers.Split(Regex(r"[\p{L}\p{M}]"), "removed"),
            pre_tokenizers.Split(Regex(r"\P{N}"), "removed"),
            pre_tokenizers.Split(Regex(r"[^\s\S]"), "removed"),
            pre_tokenizers.Split(Regex(r"[[:punct:]]"), "removed"),
            pre_tokenizers.Split(Regex(r"\h|\v"), "removed"),
            pre_tokenizers.Split(Regex(r"[\p{Lu}&&[^A-D]]"), "removed"),
            pre_tokenizers.Split(Regex(r"[^\W\d]"), "removed"),
            pre_tokenizers.Split(Regex(r"(?i)s"), "removed"),
            pre_tokenizers.Split(Regex(r"\p{Han}"), "removed"),
            pre_tokenizers.Split(Regex(r"\b"), "removed"),
        ):
            with self.subTest(splitter=str(splitter)[:100]):
                self.check_cuts(splitter, points)

    def check_cuts(self, splitter, points):
        """After an "a", a token by itself, a character joins it, stands apart or is gone: one unknown token, two, none."""
        tokenizer = Tokenizer(models.WordLevel({"?": 0, "a": 1}, unk_token="?"))
        tokenizer.pre_tokenizer = splitter
        self.load(tokenizer)
        texts = ["a" + c for c in points]
        theirs = [e.ids for e in tokenizer.encode_batch_fast(texts)]
        self.first_difference(str(splitter), texts, self.runner(encode=texts)["ids"], theirs)

    def test_decoders_match(self):
        spellings = [
            "▁a",
            "▁",
            "▁▁b",
            "c",
            "<0xE6>",
            "<0xBC>",
            "<0xA2>",
            "<0xFF>",
            "<0x41>",
            "##d",
            " .",
            " do not",
            "e</w>",
            "|",
            "<pad>",
            "f ",
            " g",
            "  h  ",
            "Ġi",
            "é",
            "漢",
            "Ģ",
            "<s>",
        ]
        chains = [
            None,
            decoders.ByteLevel(),
            decoders.Metaspace(),
            decoders.Metaspace(prepend_scheme="never"),
            decoders.WordPiece(),
            decoders.WordPiece(cleanup=False),
            decoders.BPEDecoder(),
            decoders.CTC(),
            decoders.CTC(cleanup=False),
            decoders.Fuse(),
            decoders.ByteFallback(),
            decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
            decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0), decoders.Replace(Regex("[a-c]"), "<x>")]),
            decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
            decoders.Sequence([decoders.Fuse(), decoders.Metaspace(), decoders.WordPiece()]),
        ]
        chance = random.Random(17)
        sequences = [[chance.randrange(len(spellings)) for _ in range(chance.randrange(1, 12))] for _ in range(3000)]
        for chain in chains:
            tokenizer = Tokenizer(models.WordLevel({s: i for i, s in enumerate(spellings)}, unk_token="c"))
            if chain is not None:
                tokenizer.decoder = chain
            self.load(tokenizer)
            theirs = [tokenizer.decode(ids, skip_special_tokens=False) for ids in sequences]
            ours = self.runner(decode=sequences, show_special=True)["texts"]
            self.first_difference(str(chain), [str(ids) for ids in sequences], ours, theirs)

    def test_unknown_components_are_rejected_by_name(self):
        good = json.loads(tokenizer_models.gpt2(self.training[:200]).to_str())

        def refused(change, *expected):
            data = json.loads(json.dumps(good))
            change(data)
            with self.assertRaises(RuntimeError) as caught:
                self.runner(load={"tokenizer_json": json.dumps(data)})
            for part in expected:
                self.assertIn(part, str(caught.exception))

        refused(lambda d: d.update(normalizer={"type": "Append"}), "tokenizer.json: normalizer", "Append")
        refused(lambda d: d.update(decoder={"type": "Sequence", "decoders": [{"type": "Magic"}]}), "decoder.decoders[0]", "Magic")
        refused(lambda d: d["model"].update(dropout=0.1), "model", "dropout")
        refused(lambda d: d["model"]["merges"].append(["no", "such pair"]), "model.merges[", "not in the vocabulary")
        refused(lambda d: d["model"]["vocab"].update(x=-1), "model.vocab", '"x"')
        refused(lambda d: d["model"]["vocab"].update(x=2**40), "model.vocab", '"x"')
        refused(
            lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(?<=a"}, "behavior": "Isolated", "invert": False}),
            "pre_tokenizer.pattern",
            "group without an end",
        )
        refused(lambda d: d.pop("model"), "model")

    def test_catastrophic_regex_is_an_error_not_a_hang(self):
        data = json.loads(tokenizer_models.gpt2(self.training[:200]).to_str())
        data["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
        self.runner(load={"tokenizer_json": json.dumps(data)})
        reply = self.runner(encode=["a" * 60 + "!", "ok"])["ids"]
        self.assertIn("RESOURCE_EXHAUSTED", reply[0])
        self.assertIsInstance(reply[1], list)

    def test_eos_tokens_come_from_all_files(self):
        tokenizer = tokenizer_models.STYLES["qwen2"](self.training[:200])
        end, other = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
        reply = self.load(
            tokenizer,
            tokenizer_config_json=json.dumps({"eos_token": {"content": "<|im_end|>"}}),
            special_tokens_map_json=json.dumps({"bos_token": "<|begin_of_text|>"}),
            generation_config_json=json.dumps({"eos_token_id": [other], "temperature": 0.7}),
        )
        self.assertEqual(reply["eos"], sorted([end, other]))
        self.assertEqual(reply["bos"], tokenizer.token_to_id("<|begin_of_text|>"))
        with self.assertRaisesRegex(RuntimeError, "eos_token_id"):
            self.load(tokenizer, generation_config_json=json.dumps({"eos_token_id": [-1]}))
        # Who serves the model may do without its defaults: the ends are read all the same.
        reply = self.load(tokenizer, generation_config_json=json.dumps({"eos_token_id": [other], "temperature": -1}))
        self.assertIn(other, reply["eos"])


def style_test(style):
    return lambda self: self.check_style(style)


for _style in STYLES:
    setattr(TokenizersTest, f"test_style_{_style}", style_test(_style))

if __name__ == "__main__":
    unittest.main()
