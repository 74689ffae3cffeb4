"""Tests how tests/run.sh counts the results of one `bazel test`."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count_tests.py")
# As Bazel writes it for a test that writes no XML itself.
ONE = '<testsuites><testsuite name="t"><testcase name="t" status="run"></testcase></testsuite></testsuites>'
GTEST = ('<testsuites><testsuite name="t"><testcase name="a" status="run" result="completed"/>'
         '<testcase name="b" status="run" result="skipped"><skipped/></testcase></testsuite></testsuites>')


class CountTests(unittest.TestCase):
    def count(self, *results):
        """Counts these events: (label, test.xml, test.log, more fields of the event)."""
        with tempfile.TemporaryDirectory() as folder:
            events = os.path.join(folder, "events")
            with open(events, "w", encoding="utf-8") as file:
                for number, (label, xml, log, more) in enumerate(results):
                    outputs = []
                    for name, text in ("test.xml", xml), ("test.log", log):
                        path = os.path.join(folder, f"{number} {name}")
                        with open(path, "w", encoding="utf-8") as output:
                            output.write(text)
                        outputs.append({"name": name, "uri": "file://" + path.replace(" ", "%20")})
                    file.write(json.dumps({"id": {"testResult": {"label": label, "shard": number + 1}}, "testResult": {
                        "status": "PASSED", "testActionOutput": outputs, **more}}) + "\n")
            times = os.path.join(folder, "times")
            failures = os.path.join(folder, "failures")
            said = subprocess.run([sys.executable, PROGRAM, events, times, failures], capture_output=True, text=True, check=True).stdout
            with open(times, encoding="utf-8") as file:
                self.times = file.read()
            with open(failures, encoding="utf-8") as file:
                self.failures = file.read().splitlines()
        return [int(word) for word in said.split()]

    def test_what_unittest_skipped_has_not_passed(self):
        for log, passed, skipped in (("Ran 3 tests in 0.1s\n\nOK\n", 1, 0),
                                     ("Ran 3 tests in 0.1s\n\nOK (skipped=2)\n", 1, 2),
                                     ("Ran 1 test in 0.1s\n\nOK (skipped=1)\n", 0, 1)):
            self.assertEqual(self.count(("//a:a", ONE, log, {}))[:3], [passed, 0, skipped], log)

    def test_cases_of_googletest(self):
        self.assertEqual(self.count(("//a:a", GTEST, "OK", {}))[:3], [1, 0, 1])

    def test_a_test_that_ends_badly_has_failed(self):
        self.assertEqual(self.count(("//a:a", "", "", {"status": "TIMEOUT"}))[:3], [0, 1, 0])
        self.assertEqual(self.count(("//a:a", "", "", {"status": "NO_STATUS"})), [0, 0, 0, 0, 0])

    def test_targets_from_a_cache_are_counted(self):
        near, far = {"cachedLocally": True}, {"executionInfo": {"cachedRemotely": True}}
        self.assertEqual(self.count(("//a:a", ONE, "", near), ("//a:b", ONE, "", far), ("//a:c", ONE, "", {}))[3:], [2, 3])
        # One of two shards ran.
        self.assertEqual(self.count(("//a:a", ONE, "", near), ("//a:a", ONE, "", {}))[3:], [0, 1])

    def test_seconds_of_targets_that_ran_add_up_over_shards(self):
        took = {"testAttemptDurationMillis": "1500"}
        self.count(("//a:a", ONE, "", took), ("//a:a", ONE, "", took), ("//a:b", ONE, "", {"cachedLocally": True}))
        self.assertEqual(self.times, "3.0 //a:a\n")

    def test_of_a_log_the_first_failure_and_the_end_are_shown(self):
        noise = "noise\n" * 200
        for first in ("a_test.cc:7: Failure", "FAIL: test_a (a.ATest.test_a)", "________ test_a ________"):
            log = f"{noise}{first}\nwanted 1\n{noise}second\n{noise}1 FAILED TEST\n"
            self.count(("//a:a", ONE, log, {"status": "FAILED"}), ("//a:b", ONE, f"{first}\n", {}))
            self.assertEqual(self.failures[:3], ["--- //a:a", first, "wanted 1"])
            self.assertEqual(self.failures[-1], "1 FAILED TEST")
            self.assertNotIn("second", self.failures)
        self.count(("//a:a", "", "killed\n", {"status": "TIMEOUT"}))
        self.assertEqual(self.failures, ["--- //a:a", "killed"])


if __name__ == "__main__":
    unittest.main()
