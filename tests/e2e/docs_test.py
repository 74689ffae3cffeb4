"""Runs the commands of README.md and docs/guide/*.md that are marked as tested, against a real daemon.

A page marks a block of shell commands with the comment `<!-- test -->` on the line above its fence. All marked blocks of a page run in
order in one shell, which ends the test at the first command that fails. A block that follows under `<!-- output -->` holds lines that
the commands above it print, in this order; other lines may stand between them. Numbers, with their units, match any number, runs of
spaces any run of spaces, and "..." anything.

README.md goes first: it starts the daemon and trains the models that the other pages use. The shell's folder holds book.txt, digits.npz
and cnn.onnx (from tests/data).

    docs_test.py [PAGE...]   only these pages of docs/guide, after README.md
"""

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, PROGRAMS, ROOT, free_port  # noqa: E402

SECONDS_OF_A_BLOCK = 300.0
END = "end of block, status"
UNIT = r"(?: ?(?:[kMGT](?:iB)?|[KMGT]?B|ns|us|µs|ms|s|m|%|×|x))?"
NUMBER = re.compile(r"[+-]?\d[\d.,]*(?:e[+-]?\d+)?" + UNIT + r"(?![A-Za-z\d])")
ANY_NUMBER = f"{NUMBER.pattern}(?: {NUMBER.pattern})*"  # "1m 05s", too


@dataclass
class Block:
    page: str
    line: int
    commands: str
    output: list[str] = field(default_factory=list)


def read_blocks(page: Path) -> list[Block]:
    """The marked blocks of a page."""
    blocks: list[Block] = []
    mark = ""
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        if line in ("<!-- test -->", "<!-- output -->"):
            mark = line
        elif line.startswith("```"):
            begin = at
            while at < len(lines) and not lines[at].startswith("```"):
                at += 1
            content = lines[begin:at]
            at += 1
            if mark == "<!-- test -->":
                blocks.append(Block(page.name, begin, "\n".join(content)))
            elif mark == "<!-- output -->":
                if not blocks or blocks[-1].output:
                    raise ValueError(f"{page.name}:{begin}: output without tested commands")
                blocks[-1].output = content
            mark = ""
        elif line and mark:
            raise ValueError(f"{page.name}:{at}: {mark} stands above no fence")
    return blocks


def pattern_of(line: str) -> re.Pattern[str]:
    """Matches a line like this one with other numbers."""
    parts = []
    for piece in line.strip().split("..."):
        texts = [r"\s+".join(map(re.escape, re.split(r"\s+", text))) for text in NUMBER.split(piece)]
        parts.append(ANY_NUMBER.join(texts))
    return re.compile(r"\s*" + ".*".join(parts) + r"\s*$")


def first_missing(expected: list[str], printed: str) -> str | None:
    """The first of the expected lines that is not printed behind those before it."""
    lines = iter(printed.splitlines())
    for line in expected:
        if line.strip() in ("", "..."):
            continue
        pattern = pattern_of(line)
        if not any(pattern.match(other) for other in lines):
            return line
    return None


class Shell:
    """One bash that runs blocks and stops at the first failing command."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )

    def run(self, commands: str) -> tuple[bool, str]:
        """Whether all commands succeeded, and what they printed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        script = os.path.join(self.folder, ".block.sh")
        Path(script).write_text(commands + "\n")
        # The commands read no input, least of all what is written to the shell next.
        self.process.stdin.write(f". {script} < /dev/null; printf '\\n{END} %d\\n' $?\n".encode())
        self.process.stdin.flush()
        printed, deadline = b"", time.monotonic() + SECONDS_OF_A_BLOCK
        end = f"\n{END} 0\n".encode()
        while not printed.endswith(end):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False, printed.decode(errors="replace") + f"\nnot over within {SECONDS_OF_A_BLOCK:.0f} s"
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                return False, printed.decode(errors="replace")
            printed += chunk
        return True, printed[: -len(end)].decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


# These pages have Python programs (client/python/tests/test_guide.py runs python.md's and flexflow.md's) or no commands.
WITHOUT_COMMANDS = {"flexflow.md", "flor.md", "jax.md", "keras.md", "python.md", "pytorch.md", "sessions.md"}


class DocsTest(unittest.TestCase):
    folder = ""
    grpc = http = ""
    environment: dict[str, str] = {}
    models_trained = False

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.mkdtemp(prefix="espalier-docs-")
        for name, copy in {"genesis.txt": "book.txt", "digits.npz": "digits.npz", "digits_cnn.onnx": "cnn.onnx"}.items():
            shutil.copy(os.path.join(DATA, name), os.path.join(cls.folder, copy))
        cls.grpc, cls.http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        programs = [os.path.dirname(os.path.abspath(path)) for path in PROGRAMS.values()]
        cls.environment = {name: value for name, value in os.environ.items() if not name.startswith("ESPALIER_")}
        cls.environment.update(
            ESPALIER_HOME=os.path.join(cls.folder, "home"), NO_COLOR="1", PATH=":".join([*programs, os.environ.get("PATH", "/usr/bin:/bin")])
        )

    @classmethod
    def tearDownClass(cls) -> None:
        subprocess.run([PROGRAMS["espalier"], "down", "--timeout=10"], env=cls.environment, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(cls.folder, ignore_errors=True)

    def run_page(self, page: Path) -> None:
        blocks = read_blocks(page)
        self.assertTrue(blocks, f"{page.name} has no tested block")
        shell = Shell(self.folder, self.environment)
        try:
            for block in blocks:
                start = time.monotonic()
                # Free ports instead of the default ones, which another daemon of this machine may have.
                commands = block.commands.replace("127.0.0.1:8080", self.http).replace("127.0.0.1:7070", self.grpc)
                commands = commands.replace("espalier up ", f"espalier up --listen={self.grpc} --http-listen={self.http} ")
                succeeded, printed = shell.run(commands)
                place = f"{block.page}:{block.line}"
                self.assertTrue(succeeded, f"{place} failed:\n{commands}\n--- printed\n{printed}")
                missing = first_missing(block.output, printed)
                self.assertIsNone(missing, f"{place} does not print this line of the page:\n{missing}\n--- printed\n{printed}")
                print(f"{place}: {time.monotonic() - start:.1f} s")
        finally:
            shell.close()

    def test_1_readme(self) -> None:
        self.run_page(Path(ROOT, "README.md"))
        DocsTest.models_trained = True

    def test_2_guide(self) -> None:
        self.assertTrue(self.models_trained, "the pages use the models that README.md trains")
        wanted = [os.path.basename(name) for name in sys.argv[1:]]
        pages = [page for page in sorted(Path(ROOT, "docs", "guide").glob("*.md")) if page.name not in WITHOUT_COMMANDS and (not wanted or page.name in wanted)]
        self.assertTrue(pages)
        for page in pages:
            with self.subTest(page=page.name):
                self.run_page(page)


class ReadingTest(unittest.TestCase):
    def test_numbers_match_any_number_and_unit(self) -> None:
        self.assertIsNone(first_missing(["this plan  37.7 ms  1.00×  9 B"], "this plan   1.2 s 3.5×  2.5 MiB"))
        self.assertIsNone(first_missing(["done in 767 ms: 2 steps"], "done in 1m 05s: 20 steps"))

    def test_words_and_their_order_must_be_those_printed(self) -> None:
        self.assertEqual(first_missing(["model: lm"], "model: small"), "model: lm")
        self.assertEqual(first_missing(["b", "a"], "a\nb"), "a")

    def test_dots_match_anything(self) -> None:
        self.assertIsNone(first_missing(["served: ... small", "..."], "served: lm, small"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
