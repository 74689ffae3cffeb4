#!/usr/bin/python3
"""Seconds to load a GGUF file of Q8_0 blocks: a running coordinator against llama.cpp, in turns.

    python3 -m venv DIR && DIR/bin/pip install xllamacpp
    bazel run --config=release //tests/benchmarks:gguf_loading -- --llama_python=DIR/bin/python

The model has TinyLlama's sizes (1.1e9 parameters, 1.17 GB) and random weights. Both read the file from the page cache, once before
the first round. `load` lasts until the model is ready, `with a token` until the first token of an answer to one token: llama.cpp maps the
file and reads what it did not rearrange at the first use. llama.cpp loads in a new process each round, whose start does not count.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY, POSITIONS = 2048, 22, 32, 4, 5632, 32000, 512


def load_with_llama(path, threads):
    """In a process of its own, with llama.cpp's bindings."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel, parameters.n_predict, parameters.warmup = POSITIONS, 1, 1, False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    start = time.monotonic()
    server = xllamacpp.Server(parameters)
    loaded = time.monotonic()
    answer = server.handle_completions({"prompt": [1], "max_tokens": 1, "temperature": 0})
    if "error" in str(answer)[:100] or not str(answer):
        raise SystemExit(f"llama.cpp answers {answer}")
    print("RESULT " + json.dumps({"load": loaded - start, "with a token": time.monotonic() - start}), flush=True)
    os._exit(0)  # its threads may be waiting


def write_model(folder):
    sys.path.insert(0, os.path.join(HERE, "..", "conformance"))
    import numpy as np
    import tokenizer_gguf as gguf

    random = np.random.default_rng(3)

    class RandomQ8(gguf.Blocks):
        """Made when it is written: the file does not have to fit into memory."""

        def __init__(self, *shape):
            super().__init__(8, shape, b"")
            self.nbytes = int(np.prod(shape)) // 32 * 34

        def tobytes(self):
            blocks = np.empty((self.nbytes // 34, 34), np.uint8)
            blocks[:, :2] = np.full((1, 1), 0.02 / 127, np.float16).view(np.uint8)
            blocks[:, 2:] = random.integers(-127, 128, (len(blocks), 32), dtype=np.int8).view(np.uint8)
            return blocks.tobytes()

    kv = HIDDEN // HEADS * KV_HEADS
    tensors = {"token_embd.weight": RandomQ8(VOCABULARY, HIDDEN), "output_norm.weight": np.ones(HIDDEN, np.float32),
               "output.weight": RandomQ8(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        p = f"blk.{layer}."
        tensors.update({p + "attn_norm.weight": np.ones(HIDDEN, np.float32), p + "ffn_norm.weight": np.ones(HIDDEN, np.float32),
                        p + "attn_q.weight": RandomQ8(HIDDEN, HIDDEN), p + "attn_k.weight": RandomQ8(kv, HIDDEN),
                        p + "attn_v.weight": RandomQ8(kv, HIDDEN), p + "attn_output.weight": RandomQ8(HIDDEN, HIDDEN),
                        p + "ffn_gate.weight": RandomQ8(INTERMEDIATE, HIDDEN), p + "ffn_up.weight": RandomQ8(INTERMEDIATE, HIDDEN),
                        p + "ffn_down.weight": RandomQ8(HIDDEN, INTERMEDIATE)})
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [f"\u2581{i}" for i in range(VOCABULARY - len(pieces))]
    kinds = [gguf.UNKNOWN, gguf.CONTROL, gguf.CONTROL] + [gguf.BYTE] * 256
    kinds += [gguf.NORMAL] * (VOCABULARY - len(kinds))
    value = gguf.value
    entries = {"general.architecture": value("llama"), "general.name": value("random"), "llama.context_length": value(2048),
               "llama.embedding_length": value(HIDDEN), "llama.block_count": value(LAYERS),
               "llama.feed_forward_length": value(INTERMEDIATE), "llama.attention.head_count": value(HEADS),
               "llama.attention.head_count_kv": value(KV_HEADS), "llama.attention.layer_norm_rms_epsilon": value(1e-5),
               "llama.rope.dimension_count": value(HIDDEN // HEADS), "llama.rope.freq_base": value(10000.0),
               "llama.vocab_size": value(VOCABULARY), "tokenizer.ggml.model": value("llama"),
               "tokenizer.ggml.tokens": gguf.array(gguf.STRING, pieces),
               "tokenizer.ggml.scores": gguf.array(gguf.FLOAT32, [-float(i) for i in range(VOCABULARY)]),
               "tokenizer.ggml.token_type": gguf.array(gguf.INT32, kinds),
               "tokenizer.ggml.bos_token_id": value(1), "tokenizer.ggml.eos_token_id": value(2),
               "tokenizer.ggml.unknown_token_id": value(0), "general.file_type": value(7)}
    gguf.write(folder, entries, tensors)
    return os.path.join(folder, "model.gguf")


def load(cluster):
    start = time.monotonic()
    cluster.cli("serve", "model", "--name=it", "--no-tune", "--max-requests-per-batch=1", f"--max-sequence-length={POSITIONS}")
    loaded = time.monotonic()
    status, answer = cluster.request("POST", "/v1/completions", json.dumps({"model": "it", "prompt": [1], "max_tokens": 1}))
    if status != 200:
        raise SystemExit(f"the coordinator answers {answer}")
    seconds = {"load": loaded - start, "with a token": time.monotonic() - start}
    cluster.cli("unserve", "it")
    return seconds


def load_elsewhere(python, path, threads):
    done = subprocess.run([python, os.path.abspath(__file__), f"--with_llama={path}", f"--threads={threads}"], capture_output=True,
                          text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"llama.cpp: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return json.loads(lines[0][7:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama_python", default="", help="an interpreter that has xllamacpp; empty: only ours is timed")
    parser.add_argument("--threads", type=int, default=2, help="of both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file", default="", help="a GGUF file of Q8_0 blocks, in place of the random one")
    parser.add_argument("--json_file", default="", help="also write the results here")
    parser.add_argument("--with_llama", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.with_llama:
        load_with_llama(options.with_llama, options.threads)
    sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
    from cluster import Cluster

    with tempfile.TemporaryDirectory(prefix="espalier-gguf-") as folder:
        path = options.file or write_model(folder)
        size = os.path.getsize(path)
        with Cluster(workers=0, daemon_flags=[f"--serving-threads={options.threads}"]) as cluster:
            cluster.cli("models", "upload", "model", path)
            found = {"Espalier": []}
            contenders = {"Espalier": lambda: load(cluster)}
            if options.llama_python:
                found["llama.cpp"] = []
                contenders["llama.cpp"] = lambda: load_elsewhere(options.llama_python, path, options.threads)
            for take in contenders.values():  # the page cache
                take()
            for number in range(options.rounds):
                for name, take in contenders.items():
                    found[name].append(take())
                    print(f"round {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    print(f"{size / 1e9:.2f} GB, {options.threads} threads, load of the machine {os.getloadavg()[0]:.1f}\n")
    print("| s, median (least) | " + " | ".join(found) + " | ratio, median |\n|" + "---|" * (len(found) + 2))
    result = {"bytes": size, "rounds": found, "ratios": {}}
    for what in ("load", "with a token"):
        cells = [f"{statistics.median(r[what] for r in rounds):.2f} ({min(r[what] for r in rounds):.2f})" for rounds in found.values()]
        if options.llama_python:
            ratio = statistics.median(ours[what] / theirs[what] for ours, theirs in zip(found["Espalier"], found["llama.cpp"]))
            result["ratios"][what] = ratio
            cells.append(f"{ratio:.2f}")
        print(f"| {what} | " + " | ".join(cells) + " |")
    if options.json_file:
        with open(options.json_file, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
