# ruff: noqa
# fmt: off
from flax import linen as nn
from espalier.flax.compat import tensorboard
from espalier.flax.compat import train_state
from espalier.flax.compat import jax_utils
from espalier.flax.compat import jax
import jax.numpy as jnp
import numpy as np
import optax

import time
import os
import functools

from espalier.flax.compat.vision import transforms
from espalier.flax.compat.vision import CIFAR10
from espalier.flax.compat.vision import DataLoader
from espalier.flax.compat.vision import DistributedSampler

import argparse

parser = argparse.ArgumentParser(description='cifar10 classification models, cpu performance test')
parser.add_argument('--lr', default=0.1, help='')
parser.add_argument('--batch_size', type=int, default=512, help='')
parser.add_argument('--num_workers', type=int, default=0, help='')
parser.add_argument('--coord_addr', type=str, default="127.0.0.1:34567",help='')


def main():

   args = parser.parse_args()

   world_size = int(os.environ.get("SLURM_NNODES"))
   rank = int(os.environ.get("SLURM_NODEID"))

   # Here we let jax know there's more than one node in this job
   jax.distributed.initialize(coordinator_address=args.coord_addr, num_processes=world_size, process_id=rank)

   n_devices = jax.local_device_count()

   seed = jax.random.PRNGKey(42)

   class Net(nn.Module):

         @nn.compact
         def __call__(self,x):
            x = nn.Conv(features=6, kernel_size=(5, 5))(x)
            x = nn.relu(x)
            x = nn.max_pool(x, window_shape=(2, 2))
            x = nn.Conv(features=16, kernel_size=(5, 5))(x)
            x = nn.relu(x)
            x = nn.max_pool(x, window_shape=(2, 2))
            x = x.reshape((x.shape[0], -1))
            x = nn.Dense(features=120)(x)
            x = nn.relu(x)
            x = nn.Dense(features=84)(x)
            x = nn.relu(x)
            x = nn.Dense(features=10)(x)

            return x

   class CastToJnp(object):
      def __call__(self, image):
         return np.array(image, dtype=jnp.float32)

   model = Net()

   params = model.init(seed, jnp.ones([3,32,32]))['params']
   optimizer = optax.sgd(args.lr)
   state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

   state = jax_utils.replicate(state) # Broadcast model to all GPUs on all nodes

   # Neither Flax or JAX provide pre-processing / data loading code. Here we use PyTorch for the job.
   # Here we add a DistributedSampler to make sure each node only sees a portion of the dataset

   transform_train = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), CastToJnp()])
   dataset_train = CIFAR10(root='./data', train=True, download=False, transform=transform_train)
   train_sampler = DistributedSampler(dataset_train, num_replicas=world_size, rank=rank)
   train_loader = DataLoader(dataset_train, batch_size=args.batch_size, shuffle=(train_sampler is None), num_workers=args.num_workers, sampler=train_sampler, collate_fn=collate_jax)

   perf = []

   for batch_idx, (inputs, targets) in enumerate(train_loader):
 
      # Split a batch into "n_devices" sub-batches. "n_devices" is the number of GPUs per node, not total GPUs!
      inputs = inputs.reshape(n_devices, inputs.shape[0] // n_devices, *inputs.shape[1:]) # 
      targets = targets.reshape(n_devices, targets.shape[0] // n_devices, *targets.shape[1:])

      start = time.time()

      state, loss = train_step(state, inputs, targets)

      batch_time = np.array(time.time() - start)

      if rank == 0:

         images_per_sec = args.batch_size / batch_time
         perf.append(images_per_sec)

         print(f"Current Loss: {loss}")

   if rank == 0:

      print(f"Images processed per second: {np.mean(perf)}")


# "jax.pmap" parallelizes inputs, function evaluation and outputs over a given axis. 
# This axis is the first dimension of the inputs by default - it is the number of local GPUs in this case.
# But because we called jax.distributed.initialize, computations will also be parallelized over nodes!
# jax.map also JIT compiles the function, just like @jax.jit in the single GPU case.

@functools.partial(jax.pmap, axis_name='gpus')
def train_step(state, inputs, targets):

   def compute_loss(params):
      outputs = state.apply_fn({'params': params}, inputs)
      one_hot = jax.nn.one_hot(targets, 10)
      loss = jnp.mean(optax.softmax_cross_entropy(logits=outputs, labels=one_hot))
      return loss

   backward = jax.value_and_grad(compute_loss)
   loss, grads = backward(state.params)

   grads = jax.lax.pmean(grads, axis_name='gpus') # compute the average of gradients of all model replicas across both GPUs and nodes
   loss = jax.lax.pmean(loss, axis_name='gpus') # do the same with loss

   updated_state = state.apply_gradients(grads=grads) # weight updates are computed using gradients averaged over all model replicas

   return updated_state, loss

def collate_jax(batch):
   if isinstance(batch[0], np.ndarray):
      return np.stack(batch)
   elif isinstance(batch[0], (tuple,list)):
      transposed = zip(*batch)
      return [collate_jax(samples) for samples in transposed]
   else:
      return np.array(batch)

if __name__=='__main__':
   main()
