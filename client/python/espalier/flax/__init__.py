"""Flax on the daemon.

Models of linen train by espalier.jax.Trainer, whose loss function takes parameters. Trainer here takes an nnx model:

    trainer = espalier.flax.Trainer(model, loss_fn, optax.adam(1e-3))
    trainer.fit((x, y), batch_size=64, epochs=3)    # model has the trained parameters

espalier.flax.compat runs training loops that were written for JAX: see docs/guide/jax.md.
"""

from espalier.extras import extra

with extra("flax", "flax", "jax", "optax"):
    from espalier.flax.nnx_trainer import Trainer

__all__ = ["Trainer"]
