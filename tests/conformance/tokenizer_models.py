"""Small tokenizers in the style of well-known models, trained here on the corpus with the library itself."""
import base64
import io
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Styles of o200k and of DeepSeek: categories of case, sets of signs, possessive and lazy repeats.
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_SIGNS = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
DEEPSEEK_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
DEEPSEEK_LETTERS = ("["
                    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ"
                    "ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨ"
                    "K-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲"
                    "𐳀-𐳲𑢠-𑣟𞤀-𞥃"
                    "]")
SIZE = 3000


def train(tokenizer, trainer, lines):
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def byte_level(lines, split, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                show_progress=False, special_tokens=["<|endoftext|>"]), lines)


def gpt2(lines):
    tokenizer = byte_level(lines, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta(lines):
    tokenizer = byte_level(lines, pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")),
                                                            ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def split_style(pattern, normalizer=None, ignore_merges=False):
    def make(lines):
        tokenizer = byte_level(lines, pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), ignore_merges=ignore_merges)
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|begin_of_text|>"])
        begin = tokenizer.token_to_id("<|begin_of_text|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                          special_tokens=[("<|begin_of_text|>", begin)])])
        return tokenizer
    return make


def deepseek(lines):
    return byte_level(lines, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
        pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def deepseek_first(lines, letters, signs, digits, more=()):
    """DeepSeek's first models: LLM's `letters` are those that had a case in an old Unicode, Coder's all."""
    patterns = [r"[\r\n]", rf"\s?{letters}+", signs, *more, DEEPSEEK_CJK, digits]
    return byte_level(lines, pre_tokenizers.Sequence([
        *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def falcon(lines):
    return byte_level(lines, pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))


def neox(lines):
    """Also MPT's: GPT-2's words, NFC, and runs of blanks as tokens that are matched in the text."""
    tokenizer = gpt2(lines)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in range(24, 1, -1)])
    return tokenizer


def starcoder(lines):
    return byte_level(lines, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def byte_fallback(lines, **model):
    """A SentencePiece BPE: no words, blanks as U+2581, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)  # so that training is quick
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    train(tokenizer, trainers.BpeTrainer(vocab_size=SIZE, show_progress=False, limit_alphabet=600,
                                         special_tokens=["<unk>", "<s>", "</s>", *bytes_]), lines)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data["pre_tokenizer"] = None
    # SentencePiece merges runs of blanks and has tokens for them; so do its vocabularies.
    for n in range(2, 9):
        data["model"]["vocab"].setdefault("▁" * n, len(data["model"]["vocab"]))
        data["model"]["merges"].append(["▁" * (n // 2), "▁" * (n - n // 2)])
    return data


def llama2(lines):
    data = byte_fallback(lines)
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def mistral(lines):
    """As llama2, with Metaspace before the first word in place of the normalizer."""
    data = byte_fallback(lines)
    data["normalizer"] = None
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return Tokenizer.from_str(json.dumps(data))


def gemma(lines):
    data = byte_fallback(lines)
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    data["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return Tokenizer.from_str(json.dumps(data))


def charsmap(rule="nmt_nfkc"):
    """The character map that SentencePiece compiles for a rule: field 2 of normalizer_spec, field 3 of its model. It
    trains on a few words for it; the map depends on the rule alone."""
    import sentencepiece
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abc def ghi jkl", "the word of in"] * 20), model_writer=out, vocab_size=30,
        normalization_rule_name=rule, minloglevel=2, hard_vocab_limit=False)

    def varint(data, at):
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value, at

    def field(data, wanted):
        at = 0
        while at < len(data):
            key, at = varint(data, at)
            if key & 7 == 2:
                size, at = varint(data, at)
                if key >> 3 == wanted:
                    return data[at:at + size]
                at += size
            else:
                at = varint(data, at)[1] if key & 7 == 0 else at + {5: 4, 1: 8}[key & 7]
        raise ValueError(f"no field {wanted}")

    return base64.b64encode(field(field(out.getvalue(), 3), 2)).decode()


def unigram(lines, normalizer, byte_fallback_=False, scheme="always"):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    special = ["<pad>", "</s>", "<unk>"]
    if byte_fallback_:
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    train(tokenizer, trainers.UnigramTrainer(vocab_size=SIZE, unk_token="<unk>", special_tokens=special,
                                             show_progress=False), lines)
    data = json.loads(tokenizer.to_str())
    data["normalizer"] = normalizer
    if byte_fallback_:
        data["model"]["byte_fallback"] = True
        data["added_tokens"] = data["added_tokens"][:3]
        data["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, data["decoder"]]}
    return Tokenizer.from_str(json.dumps(data))


def t5(lines):
    tokenizer = unigram(lines, {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": charsmap()},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]})
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                             special_tokens=[("</s>", tokenizer.token_to_id("</s>"))])
    return tokenizer


def xlmr(lines):
    return unigram(lines, {"type": "Precompiled", "precompiled_charsmap": charsmap("nfkc_cf")}, scheme="first")


def unigram_bytes(lines):
    return unigram(lines, {"type": "Nmt"}, byte_fallback_=True)


def bert(lines, **options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=SIZE, show_progress=False,
                                               special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]), lines)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def clip(lines):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                                 normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"<\|startoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True)
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return train(tokenizer, trainers.BpeTrainer(vocab_size=SIZE, end_of_word_suffix="</w>", limit_alphabet=500,
                                                special_tokens=["<unk>"], show_progress=False), lines)


def subword_prefix(lines):
    """BPE that marks what goes on, unknown characters not fused."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return train(tokenizer, trainers.BpeTrainer(vocab_size=SIZE, continuing_subword_prefix="##", limit_alphabet=300,
                                                special_tokens=["<unk>"], show_progress=False), lines)


def words(lines):
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.UnicodeScripts(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.FixedLength(7)])
    return train(tokenizer, trainers.WordLevelTrainer(vocab_size=SIZE, special_tokens=["<unk>"], show_progress=False),
                 lines)


def added(lines):
    """Added tokens of every kind over a lowercasing normalizer."""
    tokenizer = bert(lines)
    tokenizer.add_tokens([AddedToken("WORD", normalized=True, single_word=True), AddedToken("word", normalized=False),
                          AddedToken("ab", single_word=True, normalized=False),
                          AddedToken("é", normalized=True), AddedToken("...", lstrip=True, rstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<s>", rstrip=True), AddedToken("</s>", lstrip=True), "<|im_start|>", "<|im_"])
    return tokenizer


STYLES = {
    "gpt2": gpt2, "roberta": roberta, "llama3": split_style(LLAMA3, ignore_merges=True),
    "qwen2": split_style(QWEN2, normalizers.NFC()), "o200k": split_style(O200K), "deepseek": deepseek, "falcon": falcon,
    "starcoder": starcoder, "llama2": llama2, "mistral": mistral, "gemma": gemma, "t5": t5, "xlmr": xlmr,
    "unigram_bytes": unigram_bytes, "bert": bert,
    "bert_cased": lambda lines: bert(lines, lowercase=False, strip_accents=False, handle_chinese_chars=False),
    "clip": clip, "subword_prefix": subword_prefix, "words": words, "added": added,
}
