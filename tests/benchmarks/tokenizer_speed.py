"""Tokenization speed in MB/s of one thread: ours and Hugging Face's `tokenizers`, alternating, medians.

    bazel run --config=release //tests/benchmarks:tokenizer_speed [-- STYLE...]

The tokenizers are those of tests/conformance/tokenizer_models.py, with vocabularies of 16,000 trained on the same kinds
of text: translations into 150 languages, the King James Bible.
"""
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
import tokenizer_environment  # noqa: E402

if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    tokenizer_environment.enter()

import tokenizer_corpus  # noqa: E402
import tokenizer_models  # noqa: E402
from tokenizers_test import Runner  # noqa: E402

ROUNDS = 5
STYLES = ["gpt2", "llama3", "llama2", "t5", "bert"]


def main():
    tokenizer_models.SIZE = 16000
    training = tokenizer_corpus.translations(12000, seed=2) + tokenizer_corpus.bible(4000)
    corpora = {"languages": tokenizer_corpus.translations(12000), "English": tokenizer_corpus.bible(4000)}
    runner = Runner()
    print(f"{'style':8} {'text':10} {'MB':>5} {'ours MB/s':>10} {'library MB/s':>13} {'ratio':>6}")
    for style in sys.argv[1:] or STYLES:
        tokenizer = tokenizer_models.STYLES[style](training)
        tokenizer.encode_special_tokens = True
        runner(load={"tokenizer_json": tokenizer.to_str()})
        for name, lines in corpora.items():
            size = sum(len(line.encode()) for line in lines) / 1e6
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours += runner(time=lines, rounds=1)["seconds"]
                begin = time.perf_counter()
                for line in lines:
                    tokenizer.encode(line, add_special_tokens=False)
                theirs.append(time.perf_counter() - begin)
            a, b = size / statistics.median(ours), size / statistics.median(theirs)
            print(f"{style:8} {name:10} {size:5.2f} {a:10.1f} {b:13.1f} {a / b:6.1f}", flush=True)
    runner.close()


if __name__ == "__main__":
    main()
