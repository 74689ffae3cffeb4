"""Names of JAX, Flax and torch's data tools, for training loops that were written for JAX.

A program trains here if only its import lines change:

    from espalier.flax.compat import jax, jax_utils, train_state
    from espalier.flax.compat.vision import CIFAR10, DataLoader, transforms

Its loop runs as one job for each pass over the DataLoader; the loop sees each step's loss as the job reports it. How
JAX would have split the work does not matter any more: there is one device, pmap's axis is dropped, pmean is the
identity, and jax.distributed.initialize leaves the work to process 0, for the daemon's workers share each batch.
docs/guide/jax.md says what such a loop may do.
"""

from espalier.flax.compat import jax_names as jax
from espalier.flax.compat import jax_utils, tensorboard, train_state

__all__ = ["jax", "jax_utils", "tensorboard", "train_state"]
