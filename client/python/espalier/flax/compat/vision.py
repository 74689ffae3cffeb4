"""What loops of images use of torch and torchvision: DataLoader, DistributedSampler, transforms, CIFAR10, in NumPy.

DataLoader tells the loop's job which batches follow, so that a loop that trains here needs this one; data sets and
transforms may be those of torchvision as well.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument

Array = np.ndarray[Any, Any]


class _Pass:
    """One pass over a loader: what has been given out, and what follows."""

    def __init__(self, batches: Iterator[Any]):
        self._rest = batches
        self._ahead: list[Any] = []
        self.last: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.last = self._ahead.pop(0) if self._ahead else next(self._rest)
        return self.last

    def following(self) -> list[Any]:
        """The last batch that was given out, and all that follow."""
        self._ahead += list(self._rest)
        return [self.last, *self._ahead]


_current: list[_Pass] = []  # the pass that was begun last


def following(shapes: Sequence[tuple[int, ...]], arrays: Sequence[Array]) -> list[list[Array]]:
    """The given batch, and those that follow it in the loader's pass, with the shapes in which the step gets them.

    InvalidArgument if the batch is not the last one that a DataLoader gave out.
    """
    from espalier.flax.compat.loop import batches_of

    batches = batches_of(iter(_current[-1].following())) if _current and _current[-1].last is not None else []
    fits = bool(batches) and len(batches[0]) == len(arrays)
    fits = fits and all(np.array_equal(a.reshape(-1), b.reshape(-1)) for a, b in zip(batches[0], arrays, strict=True))
    if not fits:
        raise InvalidArgument(
            "a step got arrays that are not the last batch of an espalier.flax.compat.vision.DataLoader: without it "
            "the job cannot know what follows. Change the import of DataLoader, or use espalier.jax.Trainer"
        )
    shaped = []
    for batch in batches:
        shaped.append([b.reshape((len(b), *s[1:])) for b, s in zip(batch, shapes, strict=True)])
    return shaped


class DistributedSampler:
    """torch.utils.data.distributed.DistributedSampler; of all replicas: their batches together are one here."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int = 1,
        rank: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        if rank:
            raise InvalidArgument(f"rank {rank}: process 0 drives the training (jax.distributed.initialize)")
        self._count, self._shuffle, self._seed, self._epoch = len(dataset), shuffle, seed, 0
        self.replicas = num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Another order in another epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        return iter((random.permutation(self._count) if self._shuffle else np.arange(self._count)).tolist())

    def __len__(self) -> int:
        return self._count


class DataLoader:
    """torch.utils.data.DataLoader: batches of a data set with len() and indices. Workers are not started.

    With a DistributedSampler a batch has batch_size rows for each replica.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        **options: Any,
    ):
        if sampler is not None and shuffle:
            raise InvalidArgument("DataLoader: sampler and shuffle exclude each other")
        self.dataset, self.sampler, self.drop_last = dataset, sampler, drop_last
        self.batch_size = batch_size * int(getattr(sampler, "replicas", 1))
        self._collate = collate_fn or collate
        self._shuffle, self._random = shuffle, np.random.default_rng(seed)

    def _indices(self) -> list[int]:
        if self.sampler is not None:
            return list(self.sampler)
        count = len(self.dataset)
        order = self._random.permutation(count) if self._shuffle else np.arange(count)
        return [int(i) for i in order]

    def _batches(self) -> Iterator[Any]:
        indices = self._indices()
        for first in range(0, len(indices), self.batch_size):
            rows = indices[first : first + self.batch_size]
            if len(rows) == self.batch_size or not self.drop_last:
                yield self._collate([self.dataset[i] for i in rows])

    def __iter__(self) -> Iterator[Any]:
        _current[:] = [_Pass(self._batches())]
        return _current[0]

    def __len__(self) -> int:
        count = len(self.sampler) if self.sampler is not None else len(self.dataset)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


def collate(rows: list[Any]) -> Any:
    """Rows of tuples as a list of arrays."""
    if isinstance(rows[0], (tuple, list)):
        return [collate(list(column)) for column in zip(*rows, strict=True)]
    return np.stack([np.asarray(row) for row in rows])


class Compose:
    """Transforms one after the other."""

    def __init__(self, steps: Sequence[Callable[[Any], Any]]):
        self._steps = list(steps)

    def __call__(self, image: Any) -> Any:
        """Applies all."""
        for step in self._steps:
            image = step(image)
        return image


class ToTensor:
    """[height, width, channels] of 0 to 255 as float32 [channels, height, width] of 0 to 1."""

    def __call__(self, image: Any) -> Array:
        """Of one image."""
        pixels = np.asarray(image)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        scale = np.float32(255 if pixels.dtype == np.uint8 else 1)
        result: Array = np.ascontiguousarray(np.transpose(pixels, (2, 0, 1))).astype(np.float32) / scale
        return result


class Normalize:
    """(x - mean) / std for each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        self._mean = np.asarray(mean, np.float32)[:, None, None]
        self._std = np.asarray(std, np.float32)[:, None, None]

    def __call__(self, image: Any) -> Array:
        """Of one image."""
        result: Array = (np.asarray(image) - self._mean) / self._std
        return result


transforms = SimpleNamespace(Compose=Compose, ToTensor=ToTensor, Normalize=Normalize)


class _Arrays(pickle.Unpickler):
    """Reads pickles that hold nothing but containers, texts and arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "_frombuffer"):
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise InvalidArgument(f"a file of CIFAR-10 holds a {module}.{name}; accepted: arrays")


class CIFAR10:
    """torchvision.datasets.CIFAR10 from the files of its Python version, in root/cifar-10-batches-py."""

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ):
        if download:
            raise InvalidArgument("CIFAR10: download=True; fetch the files yourself, and give root")
        folder = os.path.join(root, "cifar-10-batches-py")
        names = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
        images, labels = [], []
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.exists(path):
                raise InvalidArgument(f"CIFAR10: there is no {path}; the archive cifar-10-python.tar.gz has it")
            with open(path, "rb") as file:
                content = _Arrays(file, encoding="latin1").load()
            images.append(np.asarray(content["data"], np.uint8).reshape(-1, 3, 32, 32))
            labels += list(content["labels"])
        self.data = np.concatenate(images).transpose(0, 2, 3, 1)
        self.targets = [int(label) for label in labels]
        self._transform, self._target = transform, target_transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self.data[index], self.targets[index]
        return (
            self._transform(image) if self._transform else image,
            self._target(label) if self._target else label,
        )
