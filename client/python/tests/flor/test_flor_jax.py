"""Loops over JAX: pytrees are returned by end(), and a replay gives the recorded bits."""

from running import Scripts

PROGRAM = """
import espalier.flor as flor
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.Dropout(0.2, deterministic=False)(nn.relu(nn.Dense(8)(x))))

x = jnp.linspace(-1, 1, 64).reshape(16, 4)
key = jax.random.key(3)
variables = Net().init({"params": key, "dropout": key}, x)
state = TrainState.create(apply_fn=Net().apply, params=variables["params"], tx=optax.adamw(0.01))
mean = {"weights": jnp.zeros(3, jnp.bfloat16), "weak": jnp.asarray(1.5)}

@jax.jit
def step(state, key):
    def loss(params):
        return (state.apply_fn({"params": params}, x, rngs={"dropout": key}) ** 2).mean() + (1 - x).mean()
    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value

for epoch in flor.it(range(5)):
    if flor.SkipBlock.step_into("training_loop"PROBED):
        for _ in range(3):
            key, now = jax.random.split(key)
            state, value = step(state, now)
            mean["weights"] = mean["weights"] + value.astype(jnp.bfloat16)
            print("step")
            flor.log("loss", value)
    state, key, mean = flor.SkipBlock.end(state, key, mean)
    flor.log("norm", optax.global_norm(state.params))
    flor.log("draw", jax.random.normal(key, (2,)))
    flor.log("mean", [mean["weights"].sum(), (mean["weak"] * mean["weights"]).dtype.name])
"""


def test_pytrees_and_keys(tmp_path):
    scripts = Scripts(tmp_path)
    scripts.run(PROGRAM.replace("PROBED", ""), "--flor", "jax")
    skipped = scripts.run(PROGRAM.replace("PROBED", ""), "--flor", "jax", "--replay_flor")
    assert skipped.stdout == ""
    assert "5 restored; 15 values and states equal the record to the bit, 0 differ" in skipped.stderr
    middle = scripts.run(PROGRAM.replace("PROBED", ", probed=True"), "--flor", "jax", "--replay_flor", "3/5")
    assert middle.stdout.count("step") == 3
    # 3 losses, 2 times 3 values outside, the state.
    assert "1 blocks executed, 1 restored; 10 values and states equal the record to the bit, 0 differ" in middle.stderr


def test_a_pytree_whose_result_is_dropped_is_refused(tmp_path):
    text = PROGRAM.replace("PROBED", "").replace("state, key, mean = flor", "flor")
    done = Scripts(tmp_path).run(text, "--flor", "jax", fails=True)
    assert "state is a TrainState, which cannot be restored in place" in done.stderr
    assert "write state, key, mean = flor.SkipBlock.end(state, key, mean)" in done.stderr
