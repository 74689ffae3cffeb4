"""JAX on the daemon: any loss function by its jaxpr, whatever library wrote the model (linen, nnx, haiku, or none)."""

from espalier.jax.convert import Converted, to_graph

__all__ = ["Converted", "to_graph"]
