"""Texts to tokenize: the translations of Debian's iso-codes (names of countries, languages and scripts in 150 languages
and most scripts), the King James Bible, and adversarial Unicode."""

import glob
import gettext
import os
import random
import subprocess

FOLDER = os.environ.get("ESPALIER_LOCALES", "/usr/share/locale")
BIBLE = "Gen1:1-Exo20:30"


def translations(count, seed=1):
    """`count` messages, the languages in turn."""
    by_language = []
    for path in sorted(glob.glob(os.path.join(FOLDER, "*", "LC_MESSAGES", "iso_*.mo"))):
        with open(path, "rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog
        by_language.append([text for text in catalog.values() if isinstance(text, str) and text])
    if len(by_language) < 100:
        raise RuntimeError(
            f"{FOLDER} holds {len(by_language)} translations of iso-codes: install the Debian package "
            "iso-codes (deploy/install.sh --tests does), or name its folder in ESPALIER_LOCALES"
        )
    chance = random.Random(seed)
    lines = [line for texts in by_language for line in texts]
    chance.shuffle(lines)
    # A line of a few messages is more like a text than one name.
    out, at = [], 0
    while len(out) < count:
        n = chance.choice([1, 1, 2, 3, 5, 8])
        if at + n > len(lines):
            at = 0
        out.append(chance.choice([" ", ", ", "\n", "; ", "  ", " – ", "\t", "。", ""]).join(lines[at : at + n]))
        at += n
    return out


def bible(count):
    text = subprocess.run(["bible", "-f", BIBLE], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
    return text.stdout.decode().splitlines()[:count]


MARKS = "\u0300\u0301\u0308\u0327\u0338\u0345\u05b0\u064b\u093c\u094d\u0e31\u0e49\u20d0\u3099\ufe0f\u200d"
PIECES = [
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "👍🏽",
    "🇩🇪🇫🇷",
    "e\u0301",
    "é",
    "ﬁ",
    "Ⅷ",
    "①",
    "ｆｕｌｌ",
    "ﾊﾝｶｸ",
    "ガ",
    "カ\u3099",
    "한글",
    "한",
    "שָׁלוֹם",
    "مرحبا",
    "\u202eabc\u202c",
    "नमस्ते",
    "ไทย",
    "ကျွန်ုပ်",
    "中文字",
    "日本語テキスト",
    "ー",
    "Ǆ",
    "İstanbul",
    "ςΣσ",
    "ß",
    "ſ",
    "don't",
    "I'LL",
    "we've",
    "'S",
    "it’s",
    "x'ſ",
    "1234567",
    "٣٤٥",
    "1,000.50",
    "½",
    "²",
    "𝟙𝟚",
    "http://a.b/c?d=e&f",
    "a_b__c",
    "\u00ad",
    "\u200b",
    "\u200c",
    "\ufeff",
    "\u2028",
    "\u2029",
    "\u0085",
    "\u00a0",
    "\u3000",
    "\u180e",
    "\u2581",
    "\u2581\u2581",
    "\x00",
    "\x01",
    "\x7f",
    "\ufffd",
    "\r\n",
    "\r",
    "\n\n\n",
    "\t\t",
    "\x0b",
    "\x0c",
    "  ",
    "   ",
    " ",
    "...",
    "!!!",
    "#@$%",
    "```",
    "<s>",
    "</s>",
    "<|im_start|>",
    "[MASK]",
    "<unk>",
    "<0x0A>",
    "Ġ",
    "Ċ",
    "##ing",
    "\U000e0041",
    "\U0010fffd",
    "\U0001f9d1",
    "𠀀",
    "\U0002ebf0",
]


def hostile(count, seed=7):
    """Lines of pieces that tokenizers differ in, of random code points (any but surrogates) and of marks out of place."""
    chance = random.Random(seed)

    def code_point():
        while True:
            c = chance.choice(
                [chance.randrange(0x250), chance.randrange(0x3100), chance.randrange(0x10000), chance.randrange(0x1F000, 0x1FB00), chance.randrange(0x110000)]
            )
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    lines = []
    for _ in range(count):
        line = ""
        for _ in range(chance.randrange(1, 14)):
            kind = chance.randrange(6)
            if kind < 3:
                line += chance.choice(PIECES)
            elif kind == 3:
                line += code_point()
            elif kind == 4:
                line += "".join(chance.choice(MARKS) for _ in range(chance.randrange(1, 5)))
            else:
                line += chance.choice(["word", "Word", "WORD", " ", "\u00e4", "a"]) * chance.randrange(1, 4)
        lines.append(line)
    return lines


def long_lines(spaces):
    chance = random.Random(3)
    return [
        " " * spaces,
        "a" * 20_000,
        "ab " * 20_000,
        "\n" * 50_000,
        "é" * 20_000,
        "漢" * 10_000,
        "\u0301" * 2_000,
        "".join(chance.choice("abc \n") for _ in range(100_000)),
        "x" + " " * 100_000 + "x",
    ]
