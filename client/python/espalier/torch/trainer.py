"""Training a PyTorch module by a job of the daemon: `Trainer`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import nn

from espalier import data as datasets
from espalier import optimizers, training
from espalier.callbacks import prepared
from espalier.client import Client
from espalier.counts import check_count, check_counts
from espalier.errors import InvalidArgument
from espalier.notes import warn
from espalier.npz import as_array
from espalier.session import Session
from espalier.spelling import checked
from espalier.torch import arguments, predicting, schedules
from espalier.torch import optimizers as torch_optimizers
from espalier.torch.evaluating import Examples, Validations, merged
from espalier.torch.live_module import Following, LiveModule, write_back
from espalier.torch.module_graph import Columns, Loss, ModuleGraph, argument_names, to_graph
from espalier.torch.recurrent import check_not_packed
from espalier.v1 import graph_pb2, program_pb2, training_pb2

Extra = Callable[[training_pb2.TrainingSpec], None]


def _has_state(optimizer: program_pb2.Optimizer) -> bool:
    """Whether an update depends on those before it: by moments, or by its number in a schedule."""
    rate = optimizer.learning_rate
    constant = rate.kind == program_pb2.LearningRateSchedule.CONSTANT and not rate.warmup_steps
    momentum = optimizer.attributes["momentum"].f if "momentum" in optimizer.attributes else 0.0
    return optimizer.name != "sgd" or bool(momentum) or not constant


class Trainer:
    """Trains a module with the daemon's workers, in place of a loop of forward, backward and step.

    loss: a loss of torch.nn, or a function of (outputs, *labels); None for a module that returns its own loss, as
    transformers models do when they get labels. optimizer: of torch.optim, or what espalier.fit takes ("adamw").
    scheduler: of torch.optim.lr_scheduler, as one that is stepped after each step, or of espalier.optimizers.
    metrics: "accuracy". clip_norm: clips the gradient's norm, as torch.nn.utils.clip_grad_norm_ does (0: not).
    precision: "bf16" or "f16" for mixed precision.

    Parameters that the optimizer does not have, or with requires_grad=False, are not trained. InvalidArgument for what
    is not supported.
    """

    @checked
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
        arguments.check_module(module)
        arguments.check_loss(loss)
        torch_optimizers.check(optimizer, scheduler, clip_norm)
        torch_optimizers.check_parameters(optimizer, module)
        self.module = module
        self.loss = loss
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.metrics = arguments.check_metrics(metrics)
        self.clip_norm = clip_norm
        self.precision = precision
        self.client = client
        self._following: Following | None = None  # while fit runs
        self._has_fitted = False
        # The graph of each session, and the passes that the module's counters have counted.
        self._sessions: weakref.WeakKeyDictionary[Session, tuple[ModuleGraph, int]] = weakref.WeakKeyDictionary()

    @checked
    def fit(
        self,
        data: Any,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | None = None,
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
        name: str = "",
        search: Mapping[str, object] | None = None,
        checkpoint_every: int = 0,
        record: str | Mapping[str, object] | None = None,
        priority: int = 0,
        time_limit: float | timedelta | None = None,
        callbacks: Sequence[training.Callback] = (),
        verbose: int = 1,
        extra: Extra | None = None,
        execution: str = "auto",
        initial_epoch: int = 0,
        stream: bool = False,
    ) -> training.TrainingResult:
        """Trains, and puts the trained parameters and running statistics into the module.

        data: a DataLoader, a dataset of torch or Hugging Face, (inputs..., labels), or a dict of columns by the names
        of the module's arguments and "labels". It is read once and uploaded: what a dataset draws at random, such as
        crops of images, is the same in all epochs, and each epoch's last batch is left out unless it is full.
        batch_size and shuffle are a DataLoader's own, if not given. Other arguments and errors: espalier.fit.

        stream: push the examples while a job trains, in the order in which `data` gives them: what it draws at random
        is new in each epoch. Needs `steps`, the most to train, if `data` has no length.

        validation_data: of the same kinds; any number of examples, which `evaluate` is asked of after each epoch, in a
        session. The result's history has "val_loss" and the metrics of each epoch, as callbacks' logs have.

        The module is trained in its mode; one that is in eval() is trained as after train(). Each fit begins with a
        new state of the optimizer.

        In a session (execution="session", or callbacks that need one) callbacks see the module as it is after each
        epoch; what they change in place, and the learning rate that they set in the optimizer's param_groups, is sent;
        `evaluate` and `predict` use the session. After a job the module has its elements at the end only.
        """
        arguments.check_callbacks(callbacks)
        if stream and validation_data is not None:
            raise InvalidArgument("fit: stream=True: only a job reads a stream, and validation_data needs a session")
        check_counts(epochs=epochs, steps=steps)
        batch_size, shuffle = _batches(data, batch_size, shuffle)
        converted = self._converted(data, columns, batch_size)
        total = _steps(data, steps, epochs, batch_size, validation_split)
        following = Following(converted, self.optimizer)
        evaluate = None
        if validation_data is not None:
            if validation_split or execution == "job":
                raise InvalidArgument(
                    "fit: validation_data and validation_split: give one of them"
                    if validation_split
                    else "fit: a job validates on validation_split; validation_data takes execution='session'"
                )
            evaluate = self._in_session(validation_data, converted, columns, batch_size).all_of
        counted = 0 if total is None or steps is not None else total // int(epochs or 1)
        told = prepared(callbacks, self.module, 0 if steps is not None else int(epochs or 1), None, counted)
        optimizer = self._optimizer(converted, total)
        if self._has_fitted and _has_state(optimizer):
            warn(
                "fit begins again with a new state of the optimizer, and of its schedule; to go on with them train in "
                "one fit, or step by step: trainer.session(...)"
            )
        self._following = following
        try:
            result = training.fit(
                converted.graph,
                data,
                optimizer=optimizer,
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
                record=record,
                priority=priority,
                time_limit=time_limit,
                callbacks=[following.first, Validations(), *told, following.last],
                verbose=verbose,
                extra=extra if evaluate is None else _each_epoch(extra),
                execution=execution,
                initial_epoch=initial_epoch,
                evaluate=evaluate,
                stream=stream,
            )
        finally:
            self._following = None
        self._has_fitted = True
        if result.job is not None and result.has_weights:
            write_back(converted, result.weights(), len(result.history.get("loss", ())))
        return result

    @checked
    def session(
        self,
        data: Any = None,
        *,
        example: Any = None,
        batch_size: int | None = None,
        validation_split: float = 0.0,
        shuffle: bool | None = None,
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        name: str = "",
        search: Mapping[str, object] | None = None,
        total_steps: int | None = None,
    ) -> Session:
        """A session for a training loop of your own, whose tensors have the names of the module's.

            with trainer.session(loader) as session:
                session.zero_gradients(); session.forward(); session.backward(); session.update()
                trainer.write_back(session)

        data: as `fit` takes it; or None, and an example of a batch: then each command brings its batch, of batch_size
        (default: that of the example). total_steps: of a schedule that ends. Other arguments and errors:
        espalier.Session.
        """
        check_counts(total_steps=total_steps)
        if (data is None) == (example is None):
            raise InvalidArgument("session: give data, or an example of a batch whose commands bring their own")
        if batch_size is None and example is not None:
            batch_size = _rows(_first(example))
        shown = example if data is None else data
        batch_size, shuffle = _batches(shown, batch_size, shuffle)
        converted = self._converted(shown, columns, batch_size)
        session = Session(
            converted.graph,
            data,
            optimizer=self._optimizer(converted, total_steps),
            batch_size=batch_size,
            columns=columns,
            keep=keep,
            validation_split=validation_split,
            shuffle=shuffle,
            seed=seed,
            name=name,
            search=search,
            precision=self.precision,
            client=self.client,
        )
        self._sessions[session] = (converted, 0)
        return session

    def write_back(self, session: Session) -> None:
        """Puts the present parameters of a session that `session` has made into the module."""
        if session not in self._sessions:
            raise InvalidArgument("write_back: the session is not one of this trainer's `session`")
        converted, counted = self._sessions[session]
        write_back(converted, session.parameters(), session.forwards - counted)
        self._sessions[session] = (converted, session.forwards)

    @checked
    def evaluate(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        columns: Mapping[str, str] | None = None,
        search: Mapping[str, object] | None = None,
    ) -> dict[str, float]:
        """Loss and metrics of all examples, as of one batch, without dropout and with running statistics.

        data: as `fit` takes it. batch_size: how many are computed at once; default: a DataLoader's, or 32. A loss that
        is no mean over examples, as a sum, is computed by PyTorch from the outputs of all; one that the module computes
        itself is that of each batch, and the mean over examples.
        """
        check_counts(batch_size=batch_size)
        live = self._live()
        if live is not None:
            return self._in_session(data, live.converted, columns, live.session.batch_size).all_of(live.session)
        if batch_size is None and not _is_loader(data):
            batch_size = 32
        size, _ = _batches(data, batch_size, None)
        converted = self._converted(data, columns, size)
        examples = Examples(data, converted, columns, self.loss)
        found = []
        for first, end, batch in examples.parts(size):
            graph = converted.graph if batch == size else self._converted(data, columns, batch).graph
            with Session(
                graph, None, optimizer="sgd", batch_size=batch, columns=columns, search=search, client=self.client
            ) as session:
                found.append((end - first, examples.evaluate(session, first, end)))
        return merged(found)

    @checked
    def predict(
        self,
        data: Any,
        *,
        batch_size: int = 32,
        search: Mapping[str, object] | None = None,
    ) -> Any:
        """The module's outputs of all examples, as in eval(): a tensor, a tuple, or a dict as transformers return it.

        data: a tensor, a tuple of the module's arguments, a dict of them, or an iterable of such batches; labels behind
        the arguments are left out.
        """
        check_count("batch_size", batch_size)
        inputs = predicting.columns_of(self.module, data)
        live = self._live()
        if live is not None:
            made = predicting.predict(live.session, live.converted, inputs)
            return predicting.result(made, "output" if all(n.split(".")[0] == "output" for n in made) else "")
        with self._training_mode():
            converted = predicting.predicting_graph(self.module, inputs, batch_size)
        with Session(
            converted.graph, None, optimizer="sgd", batch_size=batch_size, search=search, client=self.client
        ) as session:
            return predicting.result(predicting.predict(session, converted, inputs))

    def _live(self) -> LiveModule | None:
        """The session of a running fit, for its callbacks."""
        following = self._following
        if following is None or following.run is None:
            return None
        following.run.needs_session("evaluate and predict")
        following.push()
        return following.live

    @contextlib.contextmanager
    def _training_mode(self) -> Iterator[None]:
        # A module that is in eval() as a whole is traced as after train(); evaluation leaves dropout out anyway.
        was_training = self.module.training
        if not was_training:
            self.module.train()
        try:
            yield
        finally:
            if not was_training:
                self.module.train(False)

    def _in_session(self, data: Any, converted: ModuleGraph, columns: Mapping[str, str] | None, size: int) -> Examples:
        return Examples(data, converted, columns, self.loss).in_one(size)

    def _converted(self, data: Any, columns: Mapping[str, str] | None, batch_size: int) -> ModuleGraph:
        inputs, labels = self._examples(_first(data), columns)
        with self._training_mode():
            return self._graph(inputs, labels, batch_size)

    def _graph(self, inputs: Columns, labels: Columns | None, batch_size: int) -> ModuleGraph:
        return to_graph(
            self.module,
            inputs,
            loss=self.loss,
            example_labels=labels,
            metrics=self.metrics,
            batch_size=batch_size,
            trained=torch_optimizers.trained_by(self.optimizer),
        )

    def _optimizer(self, converted: ModuleGraph, total_steps: int | None) -> Any:
        schedule, peak = self.scheduler, None
        if schedule is not None and not isinstance(schedule, optimizers.Schedule):
            schedule, peak = schedules.convert(schedule, total_steps)
        trained = {v.name for v in converted.graph.proto.values if v.kind == graph_pb2.PARAMETER and not v.frozen}
        names = {id(tensor): name for name, tensor in converted.tensors.items() if name in trained}
        message = torch_optimizers.convert(self.optimizer, schedule, self.clip_norm, names)
        if peak is not None:
            message.learning_rate.CopyFrom(schedule.proto(peak))
        return message

    def _examples(self, element: Any, columns: Mapping[str, str] | None) -> tuple[Columns, Columns | None]:
        """The arguments and the labels of an element of the data."""
        if isinstance(element, Mapping):
            given = {str(key): value for key, value in element.items()}
            given |= {i: given[column] for i, column in (columns or {}).items() if column in given}
            names = argument_names(self.module)
            inputs = {key: _tensor(value, key) for key, value in given.items() if key in names}
            if not inputs:
                raise InvalidArgument(
                    f"the data has the columns {', '.join(given)}, none of which is an argument of the module: "
                    f"{', '.join(names)}"
                )
            if self.loss is None:
                return inputs, None
            rest = {key: value for key, value in given.items() if key not in names}
            # Others may be texts, such as what an example is called.
            found = ["labels"] if "labels" in rest else [key for key, value in rest.items() if not _is_text(value)]
            return inputs, {key: _tensor(rest[key], key) for key in found} or None
        items = list(element) if isinstance(element, (tuple, list)) else [element]
        for item in items:
            check_not_packed(item)
        flat = self._flat(items)
        tensors = [_tensor(item, f"column {place}") for place, item in enumerate(flat)]
        if self.loss is None:
            return tensors, None
        if len(tensors) < 2:
            raise InvalidArgument("the loss needs labels: data of (inputs, labels), or a dict with labels")
        return tensors[:-1], tensors[-1:]

    def _flat(self, items: Sequence[Any]) -> list[Any]:
        """The columns of (inputs, labels), of which inputs may be a tuple, or the list that a loader makes of one."""
        flat = datasets.flat_columns(items, numbers=True, lists=True)
        # A list of more arrays than there are arguments holds examples.
        most = len(argument_names(self.module)) + (self.loss is not None)
        return flat if len(flat) <= most else datasets.flat_columns(items, numbers=True)


def _each_epoch(extra: Extra | None) -> Extra:
    """Validates after each epoch."""

    def changed(spec: training_pb2.TrainingSpec) -> None:
        spec.validation.every_epochs = 1
        if extra is not None:
            extra(spec)

    return changed


def _rows(element: Any) -> int:
    """Number of examples of a batch."""
    while isinstance(element, (Mapping, tuple, list)) and not datasets.is_numbers(element):
        element = next(iter(element.values())) if isinstance(element, Mapping) else element[0]
    return len(element)


def _tensor(item: Any, name: str) -> torch.Tensor:
    tensor = item if isinstance(item, torch.Tensor) else torch.as_tensor(as_array(item, name))
    if tensor.dim() == 0:
        raise InvalidArgument(f"{name}: a single number; its dimension 0 must be the examples")
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _is_text(value: Any) -> bool:
    with contextlib.suppress(ValueError):  # of ragged lists
        return not isinstance(value, torch.Tensor) and np.asarray(value).dtype.kind in "USO"
    return False


def _one(value: Any) -> Any:
    """A column of one example."""
    return value[None] if isinstance(value, torch.Tensor) else np.asarray(value)[None]


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
    return check_count("batch_size", batch_size), True if shuffle is None else shuffle


def _first(data: Any) -> Any:
    """Some examples, as a batch: columns, or a tuple of them."""
    if _is_loader(data):
        return _of_iterator(iter(data))
    if isinstance(data, (Mapping, tuple)):
        return data
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__getitem__"):
        example = data[0]
        if isinstance(example, Mapping):
            return {key: _one(value) for key, value in example.items()}
        items = example if isinstance(example, (tuple, list)) else [example]
        return tuple(_one(value) for value in items)
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
