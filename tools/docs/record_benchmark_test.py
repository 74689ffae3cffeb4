"""Tests record_benchmark.py and the checks of benchmarks_markdown.py."""
from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import benchmarks_markdown
import record_benchmark


def about(**fields: Any) -> dict[str, Any]:
    return {"benchmark": "weight_streaming", "machine": "box", "machine_description": "a box", "area": "speculation", "date": "2026-11-28",
            "commit": "abc1234", "command": "weight_streaming", "configuration": "1 request", **fields}


class RecordBenchmarkTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(os.path.join(self.folder, "results"))
        with open(os.path.join(self.folder, "history.csv"), "w") as file:
            file.write(",".join(benchmarks_markdown.HISTORY_FIELDS) + "\n")

    def record(self, *texts: str, headline: bool = False, **fields: Any) -> dict[str, Any]:
        path = record_benchmark.record(self.folder, about(**fields), [record_benchmark.parse(text) for text in texts], headline)
        with open(path) as file:
            result: dict[str, Any] = json.load(file)
        return result

    def test_value_and_ratio_share_a_row(self) -> None:
        rows = self.record("tuned=131.3 tokens/s", "tuned=3.16 times offload alone")["rows"]
        self.assertEqual([(row["value"], row["unit"], row["peer"], row["ratio"]) for row in rows],
                         [(131.3, "tokens/s", "offload alone", 3.16)])

    def test_new_run_replaces_row_and_keeps_others_with_their_origin(self) -> None:
        self.record("tuned=1 tokens/s", "chain=2 tokens/s", headline=True)
        result = self.record("tuned=3 tokens/s", date="2026-11-29", commit="def5678")
        rows = {row["what"]: row for row in result["rows"]}
        self.assertEqual(result["commit"], "def5678")
        self.assertEqual((rows["tuned"]["value"], rows["tuned"].get("commit"), rows["tuned"]["headline"]), (3, None, True))
        self.assertEqual((rows["chain"]["value"], rows["chain"]["commit"], rows["chain"]["date"]), (2, "abc1234", "2026-11-28"))

    def test_every_run_adds_lines_to_the_history(self) -> None:
        self.record("tuned=1,500.5 tokens/s")
        self.record("tuned=2 tokens/s")
        with open(os.path.join(self.folder, "history.csv")) as file:
            self.assertEqual(file.read().splitlines()[1:], ["2026-11-28,weight_streaming,box,abc1234,tuned: 1 request,1500.5,tokens/s",
                                                            "2026-11-28,weight_streaming,box,abc1234,tuned: 1 request,2,tokens/s"])
        benchmarks_markdown.check_history(self.folder)

    def test_result_without_unit_is_refused(self) -> None:
        for text in ("tuned=1", "tuned", "=1 ms", "tuned=fast ms"):
            with self.assertRaises(ValueError, msg=text):
                record_benchmark.parse(text)

    def test_unknown_area_is_refused(self) -> None:
        with self.assertRaisesRegex(benchmarks_markdown.SchemaError, "area 'cooking'"):
            self.record("tuned=1 ms", area="cooking")

    def test_broken_history_is_refused_with_its_line(self) -> None:
        with open(os.path.join(self.folder, "history.csv"), "a") as file:
            file.write("yesterday,offload,box,,tuned,1,ms\n")
        with self.assertRaisesRegex(benchmarks_markdown.SchemaError, "history.csv:2"):
            benchmarks_markdown.check_history(self.folder)

    def test_table_has_the_headlines_only(self) -> None:
        self.record("tuned=131.3 tokens/s", headline=True)
        self.record("chain=2 tokens/s")
        page = benchmarks_markdown.updated(f"before\n{benchmarks_markdown.BEGIN}old\n{benchmarks_markdown.END}after\n",
                                           benchmarks_markdown.load(self.folder))
        self.assertIn("| speculation | tuned | 1 request | 131.3 tokens/s |", page)
        self.assertNotIn("chain", page)
        self.assertTrue(page.startswith("before\n") and page.endswith("after\n"))


if __name__ == "__main__":
    unittest.main()
