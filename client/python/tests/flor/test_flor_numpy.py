"""Loops over NumPy, and what does not depend on a framework: flags, refusals, segments, the store, tables."""

import ast
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from running import PACKAGE, Scripts

from espalier.errors import DataLoss, FailedPrecondition, InvalidArgument
from espalier.flor import adaptive, command_line, segments, store, writer
from espalier.flor.trees import State

PROGRAM = """
import random
import numpy as np
import espalier.flor as flor

weights, rng = np.zeros(5), np.random.default_rng(1)
losses, seen = [], {"count": 0}
for epoch in flor.it(range(8)):
    total = 0.0
    if flor.SkipBlock.step_into("train"PROBED):
        for step in range(3):
            weights += rng.normal(size=5) + np.random.rand() + random.random()
            seen["count"] += 1
            print("step", epoch)
            INNER
        total = weights.sum()
        losses.append(float(total))
    total = flor.SkipBlock.end(weights, losses, seen, total)[3]
    flor.log("total", total)
    flor.log("state", [len(losses), seen["count"], np.random.rand()])
    OUTER
"""
OUTER = 'flor.log("maximum", weights.max())'
INNER = 'flor.log("inner", weights[step])'


def program(probed="", inner="pass", outer="pass"):
    return PROGRAM.replace("PROBED", probed).replace("INNER", inner).replace("OUTER", outer)


def test_a_skipped_block_leaves_arrays_lists_dicts_and_scalars(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "np")
    done = scripts.run(program(outer=OUTER), "--flor", "np", "--replay_flor")
    assert done.stdout == ""
    assert "0 blocks executed, 8 restored; 16 values and states equal the record to the bit, 0 differ" in done.stderr


def test_segments_together_are_one_full_replay(tmp_path):
    whole, parts = Scripts(tmp_path / "whole"), Scripts(tmp_path / "parts")
    text = program(", probed=True", INNER, OUTER)
    for scripts in (whole, parts):
        scripts.folder.mkdir()
    whole.run(program(), "--flor", "np")
    shutil.copytree(whole.home, parts.home)
    whole.run(text, "--flor", "np", "--replay_flor")
    steps = []
    for k in (3, 1, 2):
        done = parts.run(text, "--flor", "np", "--replay_flor", f"{k}/3")
        assert "0 differ" in done.stderr
        steps += [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert sorted(steps) == sorted(list(range(8)) * 3)
    assert whole.rows("np") == parts.rows("np")
    assert len(whole.rows("np", "inner")) == 24


def test_a_sparse_recording_executes_again_from_the_nearest_checkpoint(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "np", FLOR_EVERY="3")  # checkpoints after the epochs 2 and 5
    done = scripts.run(program(outer=OUTER), "--flor", "np", "--replay_flor", "8/8")
    assert "epochs 6 to 6 are executed again" in done.stderr
    assert "0 differ, 1 are new" in done.stderr
    assert sorted(set(done.stdout.split())) == ["6", "7", "step"]
    refused = scripts.run(program(), "--flor", "np", "--replay_flor", "strong", "2/2", fails=True)
    assert "strong: epoch 0 has no checkpoint" in refused.stderr


def test_strong_initialisation_restores_every_epoch_before(tmp_path):
    scripts = Scripts(tmp_path)
    outside = "flor.log('outside', globals().setdefault('calls', []).append(epoch) or len(calls))"
    scripts.run(program(outer=outside), "--flor", "np")
    weak = scripts.run(program(outer=outside), "--flor", "np", "--replay_flor", "2/2")
    assert (
        "WARNING: the replay differs from the recording np@1: outside at epoch 3: recorded 4, replayed 1" in weak.stderr
    )
    strong = scripts.run(program(outer=outside), "--flor", "np", "--replay_flor", "strong", "2/2")
    assert "0 differ" in strong.stderr


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (
            "flor.SkipBlock.end(weights, thing)",
            "thing is a __main__.Thing, which has no state dict: give an object with",
        ),
        ("flor.SkipBlock.end({'a': [thing]})", "object0.a.0 is a __main__.Thing, which has no state dict"),
        ("flor.SkipBlock.end(weights, number)", "number is a int, which cannot be restored in place"),
        ("flor.SkipBlock.end(weights, np.array([thing]))", "an array of object cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name_at_the_first_end(tmp_path, end, reason):
    text = f"""
import numpy as np
import espalier.flor as flor
class Thing: pass
weights, thing, number = np.zeros(2), Thing(), 3
for epoch in flor.it(range(3)):
    if flor.SkipBlock.step_into("train"):
        weights += 1
        print(epoch)
    {end}
"""
    done = Scripts(tmp_path).run(text, "--flor", "np", fails=True)
    assert reason in done.stderr
    assert "was entered and not ended" not in done.stderr
    assert done.stdout == "0\n"
    assert Scripts(tmp_path).run(text).stdout == "0\n1\n2\n"


def test_a_full_disk_thins_the_recording_out_and_training_goes_on(tmp_path):
    scripts = Scripts(tmp_path)
    full = """
import errno, os
from espalier.flor import store
save = store.save_file
def limited(tensors, path, metadata=None):
    save(tensors, path, metadata)
    folder = os.path.join(os.environ["FLOR_HOME"], "np")
    names = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    if "train" in str(path) and len([name for name in names if "train" in name and name.endswith("safetensors")]) >= 4:
        raise OSError(errno.ENOSPC, "No space left on device")
store.save_file = limited
"""
    done = scripts.run(full + program(), "--flor", "np")
    assert done.stdout.count("step") == 24
    assert "is full: every second checkpoint was deleted" in done.stderr
    folder = scripts.home / "np" / "1" / "checkpoints" / "train"
    kept = sorted(path.name for path in folder.iterdir())
    assert 1 <= len(kept) <= 4
    assert all(name.endswith(".safetensors") for name in kept)
    replayed = scripts.run(program(outer=OUTER), "--flor", "np", "--replay_flor")
    assert f"{8 - len(kept)} blocks executed, {len(kept)} restored" in replayed.stderr
    assert "0 differ, 8 are new" in replayed.stderr


def test_a_journal_keeps_what_a_full_disk_does_not_take(tmp_path, monkeypatch):
    journal = store.Journal(tmp_path / "log.jsonl")
    real = os.write
    calls = []

    def failing(handle, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(handle, data[:7])
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data)

    monkeypatch.setattr(os, "write", failing)
    journal.add({"log": "a", "value": 1})
    with pytest.raises(OSError, match="No space"):
        journal.flush()
    assert list(store.read_lines(tmp_path / "log.jsonl")) == []
    journal.add({"log": "b", "value": 2})
    journal.flush()
    assert [line["log"] for line in store.read_lines(tmp_path / "log.jsonl")] == ["a", "b"]


def test_a_flipped_bit_in_a_checkpoint_is_named(tmp_path):
    path = tmp_path / "epoch=1.safetensors"
    state = State({"weights": np.arange(5.0)})
    store.write_checkpoint(path, {"names": []}, state)
    assert store.read_checkpoint(path)[1].arrays["weights"].tolist() == [0, 1, 2, 3, 4]
    data = bytearray(path.read_bytes())
    for at in (len(data) - 3, data.index(b"names") + 1, 2):
        flipped = bytearray(data)
        flipped[at] ^= 4
        path.write_bytes(flipped)
        with pytest.raises(DataLoss, match=r"epoch=1\.safetensors is damaged"):
            store.read_checkpoint(path)


def test_a_block_that_is_left_without_end_is_said_and_errors_of_log_are_not_taken_for_it(tmp_path):
    text = """
import espalier.flor as flor
class Thing:
    def __str__(self): raise OSError("no text")
for epoch in flor.it(range(2)):
    if flor.SkipBlock.step_into("train"):
        LEAVE
    flor.SkipBlock.end([])
"""
    scripts = Scripts(tmp_path)
    said = "block 'train' was entered and not ended"
    assert said in scripts.run(text.replace("LEAVE", "continue"), "--flor", "np").stderr
    done = scripts.run(text.replace("LEAVE", "flor.log('thing', Thing())"), "--flor", "np", fails=True)
    assert "no text" in done.stderr
    assert said not in done.stderr
    caught = "epoch or flor.log('thing', Thing())\n      except OSError: pass\n      if epoch: continue"
    done = scripts.run(text.replace("LEAVE", f"try: {caught}").replace("        try:", "      try:"), "--flor", "np")
    assert done.stderr.count(said) == 1, done.stderr


def test_a_block_that_is_never_ended_is_said_at_the_end(tmp_path):
    text = """
import espalier.flor as flor
for epoch in flor.it(range(4)):
    if flor.SkipBlock.step_into("train"):
        flor.log("loss", epoch)
"""
    scripts = Scripts(tmp_path)
    said = "WARNING: block 'train' was entered {} never ended: it has no checkpoint, and a replay executes it each time"
    done = scripts.run(text, "--flor", "np")
    assert done.stderr.count("was entered and not ended") == 1
    assert said.format("4 times and") in done.stderr
    alone = text.replace("for epoch in flor.it(range(4)):", "epoch = 0\nif True:")
    assert said.format("1 time and") in scripts.run(alone, "--flor", "np").stderr
    failing = scripts.run(text.replace("epoch)", "1 / epoch)"), "--flor", "np", fails=True)
    assert "never ended" not in failing.stderr


def test_a_renamed_block_is_said_and_no_segment_begins_from_its_checkpoint(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "np")
    renamed = program().replace('"train"', '"fit"')
    done = scripts.run(renamed, "--flor", "np", "--replay_flor")
    said = "block 'fit' is not in the recording, so that it is executed; recorded are: train"
    assert done.stderr.count(said) == 1
    assert "8 blocks executed, 0 restored" in done.stderr
    refused = scripts.run(renamed, "--flor", "np", "--replay_flor", "2/2", fails=True)
    assert "the segment begins from epoch 3, of which there is a checkpoint of block 'train', and" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "not in the recording" not in scripts.run(program(), "--flor", "np", "--replay_flor").stderr


def test_a_loop_that_has_become_longer_is_said(tmp_path):
    scripts = Scripts(tmp_path)
    said = "the program has more iterations of 'epoch' than the 8 that were recorded"
    scripts.run(program(), "--flor", "np")
    for longer in ("range(9)", "iter(range(100))", "__import__('itertools').count()"):
        text = program().replace("range(8)", longer)
        assert said in scripts.run(text, "--flor", "np", "--replay_flor").stderr
        assert said in scripts.run(text, "--flor", "np", "--replay_flor", "2/2").stderr
        assert said not in scripts.run(text, "--flor", "np", "--replay_flor", "1/2").stderr
        stopped = text + "    if epoch == 7: break\n"
        assert said not in scripts.run(stopped, "--flor", "np", "--replay_flor").stderr


def test_a_segment_without_a_main_loop_is_refused(tmp_path):
    text = """
import espalier.flor as flor
total = []
for epoch in range(2):
    if flor.SkipBlock.step_into("train"):
        total.append(epoch)
    flor.SkipBlock.end(total)
"""
    scripts = Scripts(tmp_path)
    scripts.run(text, "--flor", "np")
    assert "2 restored" in scripts.run(text, "--flor", "np", "--replay_flor").stderr
    refused = scripts.run(text, "--flor", "np", "--replay_flor", "2/2", fails=True)
    assert "2/2: the recording np@1 has no finished iteration of a main loop (flor.it)" in refused.stderr
    looped = text.replace("range(2)", "flor.it(range(2))")
    scripts.run(looped, "--flor", "loop")
    done = scripts.run(text, "--flor", "loop", "--replay_flor", "2/2")
    assert "no main loop (flor.it) now: all of it ran, and not segment 2 of 2" in done.stderr
    assert "no main loop" not in scripts.run(looped, "--flor", "loop", "--replay_flor", "2/2").stderr


def test_values_of_an_epoch_that_is_killed_are_written_as_they_come(tmp_path):
    text = """
import os, signal, time
import espalier.flor as flor
for epoch in flor.it(range(4)):
    for step in range(4):
        flor.log("loss", step + 10 * epoch)
        if epoch:
            time.sleep(0.6)
    if epoch:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    scripts = Scripts(tmp_path)
    scripts.run(text, "--flor", "np", fails=True)
    kept = [float(row[3]) for row in scripts.rows("np", "loss")]
    assert kept[:4] == [0, 1, 2, 3]
    assert len(kept) >= 7


def test_words_of_kwargs_that_nothing_uses_are_said_at_the_end(tmp_path):
    text = "import espalier.flor as flor\nprint(flor.arg('lr', 0.1))\nfor epoch in flor.it(range(1)): pass\n"
    scripts = Scripts(tmp_path)
    for words in ([], ["--flor", "np"], ["--flor", "np", "--replay_flor"]):
        done = scripts.run(text, *words, "--kwargs", "lr=0.5", "lrr=7")
        assert done.stdout == "0.5\n"
        assert "--kwargs lrr=7 was not used: the names given to flor.arg are: lr" in done.stderr
        assert "WARNING" not in scripts.run(text, *words, "--kwargs", "lr=0.5").stderr


LOOP = """
import time
import espalier.flor as flor
import numpy as np
w = np.zeros(3)
with flor.checkpointing(w=w):
    for epoch in flor.loop("epoch", range(4)):
        time.sleep(0.03)
        w += np.random.normal(size=3)
        flor.log("total", w.sum())
"""


def test_random_numbers_of_values_that_are_logged_only_now_change_no_iteration(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(LOOP, "--flor", "np")
    drawn = '        flor.log("drawn", np.random.normal())\n'
    done = scripts.run(LOOP + drawn, "--flor", "np", "--replay_flor")
    assert "block '@epoch': the program has drawn other random numbers of NumPy" in done.stderr
    assert "0 differ, 4 are new" in done.stderr


def test_an_object_that_end_was_not_given_is_hinted_at(tmp_path):
    text = program().replace("weights, losses, seen, total)[3]", "losses, seen, total)[2]")
    text = text.replace('flor.log("total", total)', 'flor.log("total", weights.sum())')
    scripts = Scripts(tmp_path)
    scripts.run(text, "--flor", "np")
    done = scripts.run(text, "--flor", "np", "--replay_flor")
    assert "replayed 0.0. A restored block changes only what SkipBlock.end was given" in done.stderr
    probed = text.replace('("train")', '("train", probed=True)').replace("normal(size=5)", "normal(size=5) + 1")
    assert "A restored block" not in scripts.run(probed, "--flor", "np", "--replay_flor").stderr


COUNTS = """
import espalier.flor as flor
import numpy as np
w, kept = np.zeros(3), 0
total = last = count = again = 0
for epoch in flor.it(range(2)):
    if flor.SkipBlock.step_into("train"):
        for step in range(3):
            w += step
            total += w.sum()
            last = count = again = kept = inner = step
            squares = [inner * inner for inner in range(3)]
    w, kept = flor.SkipBlock.end(w, kept)
    again = 0
    print(again, kept, [inner for inner in range(2)])
    count = count + 1
    flor.log("total", total)
    def other(last):
        return last
    for step in range(2):
        print(step)
"""


def test_variables_that_a_skipped_block_would_have_changed_are_named(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(COUNTS, "--flor", "np")
    done = scripts.run(COUNTS, "--flor", "np", "--replay_flor")
    assert "block 'train' is skipped, and what it assigns to count, total is read behind it: give" in done.stderr
    probed = COUNTS.replace('("train")', '("train", probed=True)')
    assert "is skipped" not in scripts.run(probed, "--flor", "np", "--replay_flor").stderr


def test_numbers_are_named_by_the_variables_in_the_call(tmp_path):
    text = """
import espalier.flor as flor
rate = other = flor.arg("rate", 0.5)
for epoch in flor.it(range(1)):
    if flor.SkipBlock.step_into("train"):
        rate *= 2
    rate, _, _ = flor.SkipBlock.end(
        rate, 3, other)
"""
    scripts = Scripts(tmp_path)
    scripts.run(text, "--flor", "np")
    (path,) = scripts.home.glob("np/1/checkpoints/*/*")
    assert store.read_checkpoint(path)[0]["names"] == ["rate", "object1", "other"]


def test_renamed_variables_are_compared_by_their_place(tmp_path):
    text = """
import numpy as np
import espalier.flor as flor
weights, rate = np.zeros(3), np.float64(0.5)
for epoch in flor.it(range(2)):
    if flor.SkipBlock.step_into("train", probed=True):
        weights, rate = weights + rate, rate * 2
    weights, rate = flor.SkipBlock.end(weights, rate)
"""
    scripts = Scripts(tmp_path)
    scripts.run(text, "--flor", "np")
    done = scripts.run(text.replace("weights", "w").replace("rate", "lr"), "--flor", "np", "--replay_flor")
    assert "2 values and states equal the record to the bit, 0 differ" in done.stderr, done.stderr


def damage(scripts, epoch, block="train"):
    path = scripts.home / "np" / "1" / "checkpoints" / block / f"epoch={epoch}.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 4]) + data[-2:])


def test_a_damaged_checkpoint_is_said_once_and_its_block_executed(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "np")
    damage(scripts, 3)
    done = scripts.run(program(outer=OUTER), "--flor", "np", "--replay_flor")
    assert set(done.stdout.splitlines()) == {"step 3"}
    assert done.stderr.count("WARNING") == 1, done.stderr
    assert "a checkpoint cannot be read, and its block is executed instead" in done.stderr
    assert "epoch=3.safetensors is damaged" in done.stderr
    assert "1 blocks executed, 7 restored; 16 values and states equal the record to the bit, 0 differ" in done.stderr
    probed = scripts.run(program(", probed=True"), "--flor", "np", "--replay_flor")
    assert probed.stderr.count("WARNING") == 1, probed.stderr
    assert "and the state is not compared with it" in probed.stderr
    assert "8 blocks executed, 0 restored; 23 values and states equal" in probed.stderr


def test_a_segment_that_begins_from_a_damaged_checkpoint_ends_with_one_error(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "np")
    damage(scripts, 3)
    refused = scripts.run(program(), "--flor", "np", "--replay_flor", "2/2", fails=True)
    assert "the segment begins from a checkpoint that cannot be read" in refused.stderr
    assert "epoch=3.safetensors is damaged" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "replayed" not in refused.stderr
    (scripts.home / "np/1/checkpoints/train/epoch=3.safetensors").unlink()  # as it says
    done = scripts.run(program(), "--flor", "np", "--replay_flor", "2/2")
    assert set(done.stdout.splitlines()) == {"step 3"}
    assert "0 differ" in done.stderr


def test_a_damaged_checkpoint_of_flor_checkpointing_is_not_compared(tmp_path):
    scripts = Scripts(tmp_path)
    text = """
import numpy as np
import espalier.flor as flor
weights = np.zeros(2)
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(4)):
        weights += np.random.rand()
        flor.log("total", weights.sum())
"""
    scripts.run(text, "--flor", "np")
    damage(scripts, 1, "%40epoch")
    done = scripts.run(text, "--flor", "np", "--replay_flor")
    assert done.stderr.count("WARNING") == 1, done.stderr
    assert "7 values and states equal the record to the bit, 0 differ" in done.stderr
    refused = scripts.run(text, "--flor", "np", "--replay_flor", "2/2", fails=True)
    assert "the segment begins from a checkpoint that cannot be read" in refused.stderr
    assert "replayed" not in refused.stderr


def test_names_lead_nowhere_else(tmp_path):
    for name in ("../../etc", "/etc/passwd", "..", ".", "a/b", "", "x" * 500, "\0"):
        assert Path(store.file_name(name)).name == store.file_name(name) not in ("", ".", "..")
        assert len(store.file_name(name)) <= 120
    for name in ("../x", ".hidden", "a/b", ""):
        with pytest.raises(InvalidArgument):
            command_line.check_name(name)
    assert store.file_name("a.b") != store.file_name("a%2Eb")


@pytest.mark.parametrize(
    ("words", "segment"),
    [
        ([], (1, 1)), (["3/5"], (3, 5)), (["5/5"], (5, 5)), (["weak", "2/3"], (2, 3)),
        (["pid:9", "ngpus:200"], (10, 200)),
    ],
)  # fmt: skip
def test_the_flags_and_which_segment_they_mean(words, segment):
    given = ["--lr", "1", "--flor", "lin", "--replay_flor", *words, "data.csv", "--kwargs", "lr=0.1", "n=2", "rest"]
    flags, left = command_line.parse(given, {})
    assert flags.NAME == "lin"
    assert flags.REPLAY
    assert list(flags.SEGMENT) == list(segment)
    assert flags.KWARGS == {"lr": "0.1", "n": "2"}
    assert left == ["--lr", "1", "data.csv", "rest"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--flor"], "needs the name"),
        (["--flor", "--replay_flor"], "needs the name"),
        (["--flor", "../x"], "the name of an experiment has letters"),
        (["--replay_flor"], "needs the experiment"),
        (["--flor", "lin", "--replay_flor", "0/5"], "numbered from 1 to 5 here.*the one-based segment 1/5"),
        (["--flor", "lin", "--replay_flor", "6/5"], "numbered from 1 to 5 here.*no segment of 5 in either"),
        (["--flor", "lin", "--replay_flor", "pid:5", "ngpus:5"], "counts from 0"),
        (["--flor", "lin", "--replay_flor=half"], "accepted are k/n"),
        (["--flor", "lin@2"], "for a replay only"),
        (["--flor", "lin", "--replay_flor", "3/4", "1/4"], "'1/4' would be a second segment"),
        (["--flor", "lin", "--replay_flor", "--quick", "3/4"], "is '3/4', which follows later, the segment"),
    ],
)
def test_wrong_flags_are_refused(words, reason):
    with pytest.raises(InvalidArgument, match=reason):
        command_line.parse(words, {})


@pytest.mark.parametrize(
    "text",
    ["3:4", "3of4", "3-4", "3", "3/ 4", "3/4/5", "-1/4", "+1/4", "Strong 3/4", "strong 3:4", "strong:3/4",
     "pid:2,ngpus:4", "pid 2", "PID:2 NGPUS:4", "3/4 pid:2", "3/4 Strong"],
)  # fmt: skip
def test_a_misspelt_segment_is_refused_and_not_taken_for_the_programs_own(text):
    for words in (["--replay_flor", *text.split()], ["--replay_flor", text], [f"--replay_flor={text}"]):
        with pytest.raises(InvalidArgument, match="k/n"):
            command_line.parse(["--flor", "lin", *words], {})


def test_the_programs_own_words_stay_beside_a_segment():
    for own in (["-v"], ["--lr", "0.1"], ["data/2024"], ["strong-net"], ["pidgin.csv"], ["--", "3/4"]):
        flags, left = command_line.parse(["1/2", "--flor", "lin", "--replay_flor", *own], {})
        assert (flags.REPLAY, flags.SEGMENT, left) == (True, (1, 1), ["1/2", *own])
    _, left = command_line.parse(["--flor", "lin", "--replay_flor", "3/4", "7", "--ratio", "1/2"], {})
    assert left == ["7", "--ratio", "1/2"]


def test_segments_are_contiguous_near_equal_and_longer_first():
    for epochs in range(12):
        for n in range(1, 15):
            parts = [segments.segment(epochs, k, n) for k in range(1, n + 1)]
            assert [epoch for part in parts for epoch in part] == list(range(epochs))
            assert sorted(map(len, parts), reverse=True) == [len(part) for part in parts]
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [(s.epoch, s.kind) for s in segments.steps(6, 2, 2, {0, 1}, False)] == [
        (1, "restore"), (2, "again"), (3, "replay"), (4, "replay"), (5, "replay"),
    ]  # fmt: skip
    with pytest.raises(FailedPrecondition, match="epoch 2 has no checkpoint"):
        segments.steps(6, 2, 2, {0, 1}, True)


def test_the_joint_rule_bounds_the_overhead():
    def checkpoints(materialise, compute, executions, top_level=True):
        costs = adaptive.Costs()
        for _ in range(executions):
            costs.executed(compute)
            if not costs.measured:
                costs.took(materialise)
            if costs.worthwhile(1 / 15, top_level):
                costs.checkpoints += 1
        return costs.checkpoints

    assert checkpoints(1, 16, 100) == 100
    for materialise in (2, 5, 40):
        count = checkpoints(materialise, 16, 200)
        assert 0 < count * materialise <= 200 * 16 / 15 + materialise
        assert checkpoints(materialise, 16, 200, top_level=False) == 0
    assert checkpoints(1000, 16, 100) == 0


def test_logging_counts_against_the_budget_and_leaves_a_quarter_of_it():
    assert adaptive.budget(0.06, 0, 10) == 0.06
    assert adaptive.budget(0.06, 0.2, 10) == pytest.approx(0.04)
    assert adaptive.budget(0.06, 5, 10) == adaptive.budget(0.06, 0, 0) / 4 == 0.015


def test_thinning_keeps_the_newest(tmp_path):
    (tmp_path / "block").mkdir()
    for number in range(7):
        path = tmp_path / "block" / f"epoch={number}.safetensors"
        path.write_bytes(b"")
        os.utime(path, (number, number))
    assert writer.thin_out(tmp_path) == 3
    assert sorted(path.name[6] for path in (tmp_path / "block").iterdir()) == list("0246")


def test_the_table(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    scripts = Scripts(tmp_path)
    scripts.run(program().replace("import random", "import random\nimport sys"), "--flor", "np")
    scripts.run(program(outer=OUTER), "--flor", "np", "--replay_flor")
    import espalier.flor as flor

    monkeypatch.setenv("FLOR_HOME", str(scripts.home))
    table = flor.dataframe("total", "maximum", experiment="np")
    assert list(table.columns) == ["version", "epoch", "ordinal", "total", "maximum", "source", "differs"]
    assert table["epoch"].tolist() == list(range(8))
    assert set(table["source"]) == {"forward+replay"}
    assert not table["differs"].any()
    assert set(flor.dataframe("total", experiment="np")["source"]) == {"forward"}
    with pytest.raises(LookupError, match="has no value nothing; logged are maximum, state, total"):
        flor.rows("nothing", experiment="np")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'espalier\[pandas\]'"):
        flor.dataframe(experiment="np")


def test_the_only_experiment_there_is_needs_no_name(tmp_path, monkeypatch):
    import espalier.flor as flor

    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "np")
    monkeypatch.setenv("FLOR_HOME", str(scripts.home))
    assert len(flor.rows("total")) == 8
    shutil.copytree(scripts.home, tmp_path / "spool")
    assert len(flor.rows("total", spool=str(tmp_path / "spool"))) == 8
    assert len(flor.rows("total", spool=str(tmp_path / "away"))) == 8
    (scripts.home / "np").rename(scripts.home / "other")
    with pytest.raises(InvalidArgument, match=r"which experiment.*recorded are: np, other"):
        flor.rows("total", spool=str(tmp_path / "spool"))
    monkeypatch.setenv("FLOR_HOME", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match=r"which experiment.*recorded are: none"):
        flor.rows("total")


def test_commands_and_a_replay_from_a_copy(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "np")

    def command(*words):
        done = subprocess.run(
            [sys.executable, "-m", "espalier.flor", *words],
            env=scripts.environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    assert "np@1" in command("ls")
    assert "8 of epoch  8 checkpoints" in command("ls", "np")
    assert len(command("show", "np@1").splitlines()) == 16
    command("spool", "np", str(tmp_path / "copy"))
    (scripts.home / "np").rename(tmp_path / "gone")
    done = scripts.run(program(), "--flor", "np", "--replay_flor", FLOR_HOME=str(tmp_path / "copy"))
    assert "8 restored; 16 values and states equal" in done.stderr


def test_importing_needs_numpy_only_and_nothing_pickles():
    text = (
        "import sys, espalier.flor; print(sorted({'torch', 'jax', 'pandas', 'grpc', 'safetensors'} & set(sys.modules)))"
    )
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE))
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    files = list((PACKAGE / "espalier" / "flor").glob("*.py"))
    assert len(files) > 10
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert not {name.partition(".")[0] for name in names} & {"pickle", "marshal", "shelve", "dill"}, path
