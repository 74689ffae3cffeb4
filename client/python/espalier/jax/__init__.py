"""JAX on the daemon: any loss function by its jaxpr, whatever library wrote the model (linen, nnx, haiku, or none).

trainer = espalier.jax.Trainer(loss_fn, params, optax.adamw(1e-3))
params = trainer.fit({"x": x, "y": y}, batch_size=64, epochs=3)
"""

from espalier.extras import extra

with extra("jax", "jax"):
    from espalier.jax.convert import Converted, to_graph
    from espalier.jax.trainer import Trainer

__all__ = ["Converted", "Trainer", "to_graph"]
