"""Writes tokenizers into GGUF files as llama.cpp's converter does: an independent GGUF writer after the format's
description (docs/gguf.md of ggml), and the merge ranks that transformers derives from SentencePiece's scores."""
import json
import os
import struct

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind, values):
    pack = {STRING: string, INT32: lambda v: struct.pack("<i", v), FLOAT32: lambda v: struct.pack("<f", v)}[kind]
    return struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(pack(v) for v in values)


def value(of):
    if isinstance(of, float):
        return struct.pack("<If", FLOAT32, of)
    if isinstance(of, bool):
        return struct.pack("<IB", BOOL, of)
    if isinstance(of, int):
        return struct.pack("<II", UINT32, of)
    return struct.pack("<I", STRING) + string(of)


class Blocks:
    """A tensor of a quantised type: its number, its shape, its bytes."""

    def __init__(self, kind, shape, data):
        self.kind, self.shape, self.data = kind, shape, data
        self.ndim, self.nbytes = len(shape), len(data)

    def tobytes(self):
        return self.data


def write(folder, entries, tensors=None):
    """`tensors`: arrays of f32, or Blocks, by name."""
    os.makedirs(folder, exist_ok=True)
    tensors = tensors or {}
    with open(os.path.join(folder, "model.gguf"), "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)))
        for key, data in entries.items():
            out.write(string(key) + data)
        at = 0
        for name, tensor in tensors.items():
            dims = struct.pack(f"<I{tensor.ndim}Q", tensor.ndim, *reversed(tensor.shape))
            out.write(string(name) + dims + struct.pack("<IQ", getattr(tensor, "kind", 0), at))
            at += -(-tensor.nbytes // 32) * 32
        for tensor in tensors.values():
            out.write(bytes(-out.tell() % 32) + tensor.tobytes())


def entries(tokenizer, model, more):
    """Tokens of a tokenizer of the library by id, with what they are. Holes are filled as the converter does."""
    data = json.loads(tokenizer.to_str())
    spelling = {i: s for s, i in data["model"]["vocab"].items()}
    kinds = {i: NORMAL for i in spelling}
    for added in data["added_tokens"]:
        spelling[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER
    size = max(spelling) + 1
    if model == "llama":
        kinds.update({i: BYTE for i, s in spelling.items() if s.startswith("<0x") and s.endswith(">") and len(s) == 6})
        kinds[data["model"]["vocab"][data["model"]["unk_token"]]] = UNKNOWN
    out = {"general.architecture": value("llama"), "tokenizer.ggml.model": value(model),
           "tokenizer.ggml.tokens": array(STRING, [spelling.get(i, f"[PAD{i}]") for i in range(size)]),
           "tokenizer.ggml.token_type": array(INT32, [kinds.get(i, UNUSED) for i in range(size)])}
    out.update({"tokenizer.ggml." + key: value(v) for key, v in more.items()})
    return data, out


def byte_level(folder, tokenizer, pre, **more):
    data, out = entries(tokenizer, "gpt2", {"pre": pre, **more})
    out["tokenizer.ggml.merges"] = array(STRING, [" ".join(merge) for merge in data["model"]["merges"]])
    write(folder, out)


def sentence_piece(folder, tokenizer, **more):
    """Gives every token a score, and returns the text of the tokenizer that transformers would make of them."""
    data, out = entries(tokenizer, "llama", more)
    vocabulary = data["model"]["vocab"]
    scores = {piece: -1e4 - i for piece, i in vocabulary.items()}  # single characters, made by no merge
    for rank, (left, right) in enumerate(data["model"]["merges"]):
        scores[left + right] = max(scores[left + right], float(-1 - rank))
    for piece in list(vocabulary)[:259]:  # <unk>, <s>, </s>, bytes
        scores[piece] = 0.0
    by_id = sorted(vocabulary, key=vocabulary.get)
    out["tokenizer.ggml.scores"] = array(FLOAT32, [scores[piece] for piece in by_id])
    write(folder, out)

    merges = []
    for piece in by_id:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(a, b) for a, b in pairs if a in vocabulary and b in vocabulary]
        merges += [(scores[piece], a, b) for a, b in sorted(pairs, key=lambda p: (vocabulary[p[0]], vocabulary[p[1]]))]
    merges.sort(key=lambda m: (m[0], len(m[1]), len(m[2])), reverse=True)
    data["model"]["merges"] = [[a, b] for _, a, b in merges]
    return json.dumps(data)
