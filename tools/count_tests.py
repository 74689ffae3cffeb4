#!/usr/bin/python3
"""Counts the test cases of one `bazel test`, from its --build_event_json_file.

    count_tests.py EVENTS [TIMES [FAILURES]]

Appends "SECONDS LABEL" of each target that ran, all shards together, to the file TIMES, and what the log of each that
failed says to FAILURES: the first failure and the end.
Prints "PASSED FAILED SKIPPED CACHED TARGETS": numbers of cases, of targets with a cached result, and of all
targets. A GoogleTest program counts by its cases; any other test counts as one, plus the cases that Python's
unittest skipped (if all were skipped, none passed). A test that failed without a failed case (crash, time-out)
adds one failure. Tests that did not build are not counted: the build has failed.
"""
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

FIRST_LINES, LAST_LINES, COLUMNS = 40, 30, 400
# GoogleTest; unittest; pytest.
FAILURE = re.compile(r": Failure$|^(FAIL|ERROR): |^_{4,} .* _{4,}$")
NOT_RUN = {"NO_STATUS", "FAILED_TO_BUILD", "BLAZE_HALTED_BEFORE_TESTING"}


def cases(path):
    """Returns (passed, failed, skipped) of one test.xml."""
    passed = failed = skipped = 0
    try:
        tree = ElementTree.parse(path)
    except (OSError, ElementTree.ParseError):
        return 0, 0, 0
    for case in tree.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif (case.find("skipped") is not None or case.get("result") in ("skipped", "suppressed")
              or case.get("status") == "notrun"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def skips(path):
    """Returns (skipped, all) cases from the log of a Python test; (0, 0) for other tests."""
    try:
        with open(path, errors="replace") as file:
            log = file.read()
    except OSError:
        return 0, 0
    skipped = re.findall(r"^(?:OK|FAILED) \(.*?\bskipped=(\d+)", log, re.M)
    ran = re.findall(r"^Ran (\d+) tests? in ", log, re.M)
    return sum(map(int, skipped)), sum(map(int, ran))


def excerpt(path):
    """The lines from the first failure in a log, and the last ones."""
    try:
        with open(path, errors="replace") as file:
            lines = [line.rstrip()[:COLUMNS] for line in file]
    except OSError as error:
        return [str(error)]
    first = next((number for number, line in enumerate(lines) if FAILURE.search(line)), None)
    shown = [] if first is None else lines[first:first + FIRST_LINES]
    end = len(shown) + (first or 0)
    last = max(end, len(lines) - LAST_LINES)
    return [*shown, *(["[...]"] if last > end else []), *lines[last:]]


def main(events, times=None, failures=None):
    # The last attempt of each shard of each run of each target. The target identifies the
    # configuration: this is one invocation.
    results = {}
    with open(events) as lines:
        for line in lines:
            event = json.loads(line)
            if "testResult" not in event or "testResult" not in event.get("id", {}):
                continue
            key = event["id"]["testResult"]
            results[key["label"], key.get("run", 1), key.get("shard", 1)] = event["testResult"]

    total = [0, 0, 0]
    cached = {}
    seconds = {}
    failed = []
    for (label, _, _), result in results.items():
        status = result.get("status", "NO_STATUS")
        if status in NOT_RUN:
            continue
        cached[label] = cached.get(label, True) and bool(
            result.get("cachedLocally") or result.get("executionInfo", {}).get("cachedRemotely"))
        if not cached[label]:
            seconds[label] = seconds.get(label, 0) + int(result.get("testAttemptDurationMillis", 0)) / 1000
        counts, python, log = [0, 0, 0], (0, 0), ""
        for output in result.get("testActionOutput", []):
            path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
            if output["name"] == "test.xml":
                counts = list(cases(path))
            elif output["name"] == "test.log":
                python, log = skips(path), path
        if status in ("PASSED", "FLAKY"):
            if not any(counts):
                counts[0] = 1
        else:
            counts[1] = max(counts[1], 1)
            failed.append((label, log))
        if python[0] > 0:
            counts[2] += python[0]
            if python[0] == python[1]:
                counts[0] = 0
        total = [a + b for a, b in zip(total, counts)]
    if times is not None:
        with open(times, "a") as file:
            for label, taken in seconds.items():
                print(f"{taken:.1f} {label}", file=file)
    if failures is not None:
        with open(failures, "a") as file:
            for label, log in failed:
                print(f"--- {label}", *excerpt(log), sep="\n", file=file)
    print(*total, sum(cached.values()), len(cached))


main(*sys.argv[1:])
