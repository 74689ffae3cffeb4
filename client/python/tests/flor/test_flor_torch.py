"""Loops over PyTorch: FLOR's programs with another import, and replays that give the recorded bits."""

import os
import signal
import subprocess
import time

import pytest
from running import PACKAGE, Scripts

# As FLOR's README and linear.py, on made data: unseeded, with dropout, batch norm, shuffling, Adam and a schedule.
PROGRAM = """
import espalier.flor as flor
import torch
import torch.nn as nn

torch.set_num_threads(1)
x = torch.linspace(-1, 1, 128 * 8).reshape(128, 8).cos()
y = (x.sum(1) > 0).long()
trainloader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True{loader})
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

def eval(net):
    net.eval()
    with torch.no_grad():
        flor.log("accuracy", (net(x).argmax(1) == y).float().mean().item())

def log_confusion_matrix(net):
    flor.log("confusion", (y * 2 + net(x).argmax(1)).bincount(minlength=4).reshape(2, 2))

for epoch in flor.it(range(6)):
    if flor.SkipBlock.step_into("training_loop"{probed}):
        net.train()
        for data in trainloader:
            inputs, labels = data
            optimizer.zero_grad()
            loss = criterion(net(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(f"loss: {{loss.item()}}")
            flor.log("loss", loss.item())
            {inner}
        scheduler.step()
    flor.SkipBlock.end(net, optimizer, scheduler, scaler)
    eval(net)
    {outer}
print("finished", flor.__name__)
"""
EXAMPLE = PACKAGE / "examples" / "flor_digits.py"
GENERATOR = ", generator=torch.Generator().manual_seed(3)"


def program(loader="", probed="", inner="pass", outer="pass"):
    return PROGRAM.format(loader=loader, probed=probed, inner=inner, outer=outer)


NORM = 'flor.log("norm", [p.grad.norm() for p in net.parameters()])'
CONFUSION = "log_confusion_matrix(net)"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    scripts = Scripts(tmp_path_factory.mktemp("torch"))
    scripts.run(program(), "--flor", "lin")
    return scripts


def test_without_flags_nothing_is_recorded(tmp_path):
    scripts = Scripts(tmp_path)
    done = scripts.run(program(), "--lr", "1")
    assert done.stdout.count("loss: ") == 24
    assert done.stderr == ""
    assert not scripts.home.exists()


def test_a_value_outside_the_block_is_computed_without_training(recorded):
    done = recorded.run(program(outer=CONFUSION), "--flor", "lin", "--replay_flor")
    assert "loss: " not in done.stdout
    assert "0 blocks executed, 6 restored; 6 values and states equal" in done.stderr
    assert "0 differ, 6 are new" in done.stderr
    assert [row[4] for row in recorded.rows("lin", "confusion")] == ["replay"] * 6


def test_a_probed_block_gives_the_recorded_bits_from_the_first_unseeded_weights_on(recorded):
    done = recorded.run(program(probed=", probed=True", inner=NORM), "--flor", "lin", "--replay_flor")
    # 24 losses, 6 accuracies, 6 checkpoints.
    assert "6 blocks executed, 0 restored; 36 values and states equal the record to the bit, 0 differ" in done.stderr


@pytest.mark.parametrize("loader", ["", GENERATOR])
def test_one_middle_epoch_gives_the_recorded_bits(tmp_path, loader):
    scripts = Scripts(tmp_path)
    whole = scripts.run(program(loader), "--flor", "lin")
    words = ("--flor", "lin", "--replay_flor")
    fourth = scripts.run(program(loader, probed=", probed=True"), *words, "4/6")
    losses = [line for line in whole.stdout.splitlines() if line.startswith("loss")]
    assert [line for line in fourth.stdout.splitlines() if line.startswith("loss")] == losses[12:16]
    assert "0 differ" in fourth.stderr
    assert "epochs 3 to 3 of 0 to 5" in fourth.stderr
    readme = scripts.run(program(loader, probed=", probed=True"), *words, "pid:3", "ngpus:6")
    assert readme.stdout == fourth.stdout


DRAWS = 'flor.log("drawn", next(iter(trainloader))[0].sum().item())'


def test_random_numbers_of_values_that_are_logged_only_now_change_no_block(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "lin", FLOR_EPSILON="0.9")
    words = ("--flor", "lin", "--replay_flor")
    for segment in ((), ("2/3",)):
        done = scripts.run(program(probed=", probed=True", inner=NORM, outer=DRAWS), *words, *segment)
        assert "drawn other random numbers of PyTorch than when it was recorded" in done.stderr
        assert "0 differ" in done.stderr
    assert not any(row[5] for row in scripts.rows("lin"))
    # Also where there are no checkpoints.
    sparse = Scripts(tmp_path / "sparse")
    sparse.folder.mkdir()
    sparse.run(program(), "--flor", "lin", FLOR_EVERY="100", FLOR_EPSILON="0.9")
    done = sparse.run(program(outer=DRAWS), *words)
    assert "6 blocks executed, 0 restored; " in done.stderr
    assert "drawn other random numbers of PyTorch" in done.stderr
    assert "0 differ, 6 are new" in done.stderr


def test_new_values_of_another_course_than_the_recorded_one_are_marked(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(program(), "--flor", "lin")
    changed = program(inner="if epoch == 2: optimizer.param_groups[0]['lr'] = 0.011", outer=CONFUSION)
    scripts.run(changed, "--flor", "lin", "--replay_flor")
    marked = {row[0][0][1]: row[5] for row in scripts.rows("lin", "confusion")}
    assert marked == {epoch: epoch >= 2 for epoch in range(6)}


def test_a_changed_block_is_executed_and_the_difference_located(recorded):
    changed = program(inner="if epoch == 2: optimizer.param_groups[0]['lr'] = 0.011")
    done = recorded.run(changed, "--flor", "lin", "--replay_flor", "3/6")
    assert "block 'training_loop' has changed since the recording: it is executed again" in done.stderr
    assert "WARNING: the replay differs from the recording lin@1: loss at epoch 2: recorded 0." in done.stderr
    assert any(row[5] for row in recorded.rows("lin", "loss"))
    strict = recorded.run(changed, "--flor", "lin", "--replay_flor", "3/6", fails=True, FLOR_STRICT="1")
    assert "ReplayDiffers" in strict.stderr


def test_an_optimizer_alone_saves_its_parameters(tmp_path):
    scripts = Scripts(tmp_path)
    text = program().replace("end(net, optimizer, ", "end(optimizer, ").replace("nn.BatchNorm1d(16), ", "")
    assert "the optimizer optimizer was given without its module" in scripts.run(text, "--flor", "lin").stderr
    done = scripts.run(text, "--flor", "lin", "--replay_flor")
    assert "0 blocks executed, 6 restored; 6 values and states equal" in done.stderr


def test_flordbs_verbs(tmp_path):
    scripts = Scripts(tmp_path)
    text = """
import espalier.flor as flor
import torch
torch.set_num_threads(1)
rate, hidden = flor.arg("lr", 0.01), flor.arg("hidden", default=4)
net = torch.nn.Linear(hidden, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=rate)
x = torch.ones(12, hidden)
with flor.checkpointing(model=net, optimizer=optimizer):
    for epoch in flor.loop("epoch", range(3)):
        for data in flor.loop("step", x.split(4)):
            optimizer.zero_grad()
            loss = net(data).square().mean()
            loss.backward()
            optimizer.step()
            print("step")
            flor.log("loss", loss.item())PROBE
        flor.log("weight", net.weight.sum())
"""
    done = scripts.run(text.replace("PROBE", ""), "--flor", "verbs", "--kwargs", "lr=0.1", "hidden=5")
    assert done.stdout.count("step") == 9
    skipped = scripts.run(text.replace("PROBE", ""), "--flor", "verbs", "--replay_flor", "2/3")
    assert "step" not in skipped.stdout
    assert "0 blocks executed, 2 restored; 2 values and states equal the record to the bit, 0 differ" in skipped.stderr
    probe = '\n            flor.log("gradient", net.weight.grad.norm())'
    probed = scripts.run(text.replace("PROBE", probe), "--flor", "verbs", "--replay_flor", "2/3")
    assert "block 'step' has changed" in probed.stderr
    assert "0 differ, 3 are new" in probed.stderr
    places = [row[0] for row in scripts.rows("verbs", "gradient")]
    assert places == [(("epoch", 1), ("step", step)) for step in range(3)]
    assert [row[3] for row in scripts.rows("verbs", "lr", "hidden")] == ["5", "0.1"]


def test_what_was_recorded_before_kill_9_is_replayed(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.write(program(outer="import time; time.sleep(0.3 if epoch < 3 else 60)"))
    process = subprocess.Popen(
        scripts.command("--flor", "lin"), env=scripts.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    folder = scripts.home / "lin" / "1" / "checkpoints" / "training_loop"
    for _ in range(600):
        if (folder / "epoch=2.safetensors").exists() and (folder / "epoch=3.safetensors").exists():
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (folder / ".incomplete-left").write_bytes(b"half")
    done = scripts.run(program(outer=CONFUSION), "--flor", "lin", "--replay_flor")
    assert "did not end" in done.stderr
    assert "0 blocks executed, 3 restored; 3 values and states equal the record to the bit, 0 differ" in done.stderr
    assert [row[0][0][1] for row in scripts.rows("lin", "confusion")] == [0, 1, 2]


def test_tensors_of_all_types_keep_their_bits(tmp_path):
    import torch

    from espalier.flor import objects, store
    from espalier.flor.trees import State

    given = {
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool)
    }
    given |= {"complex": torch.view_as_complex(torch.rand(3, 2)), "scalar": torch.tensor(float("nan"))}
    given |= {"generator": torch.Generator().manual_seed(4), "strided": torch.rand(4, 6).t()[::2]}
    state = State()
    path = tmp_path / "checkpoint"
    store.write_checkpoint(path, objects.capture(given, "given", state), state)
    before = {name: value.clone() for name, value in given.items() if isinstance(value, torch.Tensor)}
    drawn = torch.rand(2, generator=given["generator"])
    for value in given.values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    same = dict(given)
    assert objects.restore(given, *(lambda read: (read[0], "given", read[1]))(store.read_checkpoint(path))) is given
    assert all(given[name] is value for name, value in same.items())
    for name, value in before.items():
        bits = [each.contiguous().flatten().view(torch.uint8).tolist() for each in (given[name], value)]
        assert bits[0] == bits[1], name
    assert torch.rand(2, generator=given["generator"]).tolist() == drawn.tolist()


def test_random_states_of_cuda_devices(monkeypatch, capsys):
    """With functions in place of CUDA's: which states are taken, where they go, and what is said if they cannot."""
    import torch

    from espalier.flor import randomness
    from espalier.flor.trees import State

    devices = [torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3, 4], dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(devices))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(devices))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: devices.__setitem__(device, state))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: bool(devices))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    randomness._said.clear()
    state = State()
    node = randomness.capture_global(state)
    devices[:] = [torch.zeros(2, dtype=torch.uint8)] * 2
    randomness.restore_global(node, state)
    assert [each.tolist() for each in devices] == [[1, 2], [3, 4]]
    assert capsys.readouterr().err == ""
    del devices[1]
    for _ in range(2):
        randomness.restore_global(node, state)
    assert capsys.readouterr().err.count("has the random states of 2 CUDA devices, and 1 are here") == 1
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    for _ in range(2):
        randomness.capture_global(State())
    assert capsys.readouterr().err.count("the random states of mps devices are not recorded") == 1


def test_an_unseeded_program_begins_with_the_recorded_seeds_of_devices(tmp_path):
    text = """
import sys
import espalier.flor as flor
from espalier.flor import randomness
def manual_seed_all(seed): print("devices", seed)
def seed_devices():
    sys.modules["torch"].cuda.manual_seed_all = manual_seed_all
    original()
original, randomness.seed_devices = randomness.seed_devices, seed_devices
import torch
for epoch in flor.it(range(1)):
    pass
"""
    scripts = Scripts(tmp_path)
    first = scripts.run(text, "--flor", "lin").stdout
    assert first.startswith("devices ")
    assert scripts.run(text, "--flor", "lin", "--replay_flor").stdout == first
    assert scripts.run(text, "--flor", "lin").stdout != first
    early = scripts.run("import torch" + text, "--flor", "lin").stdout  # it may have seeded them itself
    assert early == ""


def test_the_example(tmp_path):
    example = (PACKAGE / "examples" / "flor_digits.py").read_text().replace("__file__", repr(str(EXAMPLE)))
    scripts = Scripts(tmp_path)
    words = ("--flor", "digits", "--kwargs", "epochs=4", "hidden=64")
    done = scripts.run(example, *words)
    assert float(done.stdout.splitlines()[-1].split()[-1].rstrip("%")) > 60
    replayed = scripts.run(example, "--flor", "digits", "--replay_flor")
    assert replayed.stdout == done.stdout
    assert "4 restored; 8 values and states equal the record to the bit, 0 differ" in replayed.stderr
