"""Training a PyTorch module by a job of the daemon: `Trainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from espalier import optimizers, training
from espalier.client import Client
from espalier.errors import InvalidArgument
from espalier.torch import optimizers as torch_optimizers
from espalier.torch import schedules
from espalier.torch.module_graph import Columns, Loss, ModuleGraph, argument_names, to_graph
from espalier.v1 import training_pb2


class Trainer:
    """Trains a module with the daemon's workers, in place of a loop of forward, backward and step.

    loss: a loss of torch.nn, or a function of (outputs, *labels); None for a module that returns its own loss, as
    transformers models do when they get labels. optimizer: of torch.optim, or what espalier.fit takes ("adamw").
    scheduler: of torch.optim.lr_scheduler, as one that is stepped after each step, or of espalier.optimizers.
    metrics: "accuracy". clip_norm: clips the gradient's norm, as torch.nn.utils.clip_grad_norm_ does (0: not).
    precision: "bf16" or "f16" for mixed precision.

    Parameters that the optimizer does not have, or with requires_grad=False, are not trained.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: torch.optim.Optimizer | optimizers.Optimizer | str,
        loss: Loss = None,
        scheduler: Any = None,
        metrics: Sequence[str] = (),
        clip_norm: float = 0.0,
        precision: str | None = None,
        client: Client | None = None,
    ):
        self.module = module
        self.loss = loss
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.metrics = tuple(metrics)
        self.clip_norm = clip_norm
        self.precision = precision
        self.client = client

    def fit(
        self,
        data: Any,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        validation_split: float = 0.0,
        shuffle: bool | None = None,
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
        name: str = "",
        search: Mapping[str, object] | None = None,
        checkpoint_every: int = 0,
        callbacks: Sequence[training.Callback] = (),
        verbose: int = 1,
        extra: Callable[[training_pb2.TrainingSpec], None] | None = None,
    ) -> training.TrainingResult:
        """Trains, and puts the trained parameters and running statistics into the module.

        data: a DataLoader, a dataset of torch or Hugging Face, (inputs..., labels), or a dict of columns by the names
        of the module's arguments and "labels". It is read once and uploaded: what a dataset draws at random, such as
        crops of images, is the same in all epochs, and each epoch's last batch is left out unless it is full.
        batch_size and shuffle are a DataLoader's own, if not given. Other arguments and errors: espalier.fit.

        The module is trained in its mode; one that is in eval() is trained as after train(). Each fit begins with a
        new state of the optimizer.
        """
        batch_size, shuffle = _batches(data, batch_size, shuffle)
        arguments, labels = self._examples(_first(data), columns)
        was_training = self.module.training
        self.module.train() if not was_training else None
        try:
            converted = self._graph(arguments, labels, batch_size)
        finally:
            self.module.train(was_training) if not was_training else None
        result = training.fit(
            converted.graph,
            data,
            optimizer=self._optimizer(_steps(data, steps, epochs, batch_size, validation_split)),
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            validation_split=validation_split,
            shuffle=shuffle,
            seed=seed,
            columns=columns,
            name=name,
            client=self.client,
            search=search,
            precision=self.precision,
            checkpoint_every=checkpoint_every,
            callbacks=callbacks,
            verbose=verbose,
            extra=extra,
        )
        if result.model:
            write_back(converted, result.weights(), len(result.history.get("loss", ())))
        return result

    def _graph(self, arguments: Columns, labels: Columns | None, batch_size: int) -> ModuleGraph:
        return to_graph(
            self.module,
            arguments,
            loss=self.loss,
            example_labels=labels,
            metrics=self.metrics,
            batch_size=batch_size,
            trained=torch_optimizers.trained_by(self.optimizer),
        )

    def _optimizer(self, total_steps: int | None) -> Any:
        schedule, peak = self.scheduler, None
        if schedule is not None and not isinstance(schedule, optimizers.Schedule):
            schedule, peak = schedules.convert(schedule, total_steps)
        message = torch_optimizers.convert(self.optimizer, schedule, self.clip_norm)
        if peak is not None:
            message.learning_rate.CopyFrom(schedule.proto(peak))
        return message

    def _examples(self, element: Any, columns: Mapping[str, str] | None) -> tuple[Columns, Columns | None]:
        """The arguments and the labels of an element of the data."""
        if isinstance(element, Mapping):
            given = {str(key): _tensor(value, str(key)) for key, value in element.items()}
            given |= {i: given[column] for i, column in (columns or {}).items() if column in given}
            names = argument_names(self.module)
            arguments = {key: value for key, value in given.items() if key in names}
            rest = {key: value for key, value in given.items() if key not in names}
            if not arguments:
                raise InvalidArgument(
                    f"the data has the columns {', '.join(given)}, none of which is an argument of the module: "
                    f"{', '.join(names)}"
                )
            if self.loss is None:
                return arguments, None
            labels = {"labels": rest["labels"]} if "labels" in rest else rest
            return arguments, labels or None
        items = list(element) if isinstance(element, (tuple, list)) else [element]
        flat: list[Any] = []
        for item in items:
            flat.extend(item if isinstance(item, (tuple, list)) else [item])
        tensors = [_tensor(item, f"column {place}") for place, item in enumerate(flat)]
        if self.loss is None:
            return tensors, None
        if len(tensors) < 2:
            raise InvalidArgument("the loss needs labels: data of (inputs, labels), or a dict with labels")
        return tensors[:-1], tensors[-1:]


def write_back(converted: ModuleGraph, weights: Mapping[str, np.ndarray[Any, Any]], steps: int) -> None:
    """Puts trained elements into the module's tensors, and advances its counters by `steps`."""
    with torch.no_grad():
        for name, tensor in converted.tensors.items():
            if name in weights:
                tensor.copy_(torch.from_numpy(np.array(weights[name])).to(tensor.dtype))
        for tensor, step in converted.counters.values():
            tensor.add_(step * steps)


def _tensor(item: Any, name: str) -> torch.Tensor:
    tensor = item if isinstance(item, torch.Tensor) else torch.as_tensor(np.asarray(item))
    if tensor.dim() == 0:
        raise InvalidArgument(f"{name}: a single number; its dimension 0 must be the examples")
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _is_loader(data: Any) -> bool:
    return isinstance(data, torch.utils.data.DataLoader)


def _batches(data: Any, batch_size: int | None, shuffle: bool | None) -> tuple[int, bool]:
    """Batch size and order: as given, or a DataLoader's."""
    if _is_loader(data):
        if batch_size is None:
            batch_size = data.batch_size
        if shuffle is None:
            # The order of other samplers, such as weighted ones, is the one in which the data is read.
            shuffle = isinstance(data.sampler, torch.utils.data.RandomSampler)
    if batch_size is None:
        raise InvalidArgument("give batch_size=, the number of examples in a step")
    return int(batch_size), True if shuffle is None else shuffle


def _first(data: Any) -> Any:
    """Some examples, as a batch: columns, or a tuple of them."""
    if _is_loader(data):
        return _of_iterator(iter(data))
    if isinstance(data, (Mapping, tuple)):
        return data
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__getitem__"):
        example = data[0]
        if isinstance(example, Mapping):
            return {key: torch.as_tensor(np.asarray(value))[None] for key, value in example.items()}
        items = example if isinstance(example, (tuple, list)) else [example]
        return tuple(torch.as_tensor(np.asarray(value))[None] for value in items)
    if hasattr(data, "with_format") and hasattr(data, "column_names"):  # of Hugging Face
        return data.with_format("torch")[:2]
    raise InvalidArgument(
        f"data is a {type(data).__name__}; accepted: a DataLoader, a dataset of torch or Hugging Face, a tuple of "
        "(inputs, labels), or a dict of columns"
    )


def _of_iterator(iterator: Any) -> Any:
    try:
        return next(iterator)
    except StopIteration:
        raise InvalidArgument("the DataLoader gives no batch") from None


def _steps(data: Any, steps: int | None, epochs: int | None, batch_size: int, held_out: float) -> int | None:
    """Steps of the job, if they are known before the data is read."""
    if steps is not None:
        return steps
    source = data.dataset if _is_loader(data) else data
    try:
        if isinstance(source, Mapping):
            source = next(iter(source.values()))
        elif isinstance(source, tuple):
            source = source[0] if not isinstance(source[0], tuple) else source[0][0]
        examples = len(source)
    except TypeError:
        return None
    held = round(examples * held_out)
    return (examples - held) // batch_size * (epochs or 1)
