"""The part of FFModel that trains: one session for fit, eval and loops of the user's own."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.client import Client, default_client
from espalier.core import optimizers
from espalier.core.config import FFConfig
from espalier.core.data_loader import SingleDataLoader
from espalier.core.enums import CompMode, LossType, MetricsType
from espalier.core.feeding import Feeding
from espalier.core.layer import Array, Feed, Op, Parameter, Tensor
from espalier.core.loss import LABEL, Compiled, add_loss, loss_type_of, metric_of
from espalier.core.metrics import PerfMetrics
from espalier.core.settle import settle
from espalier.counts import check_count
from espalier.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from espalier.notes import warn
from espalier.plan import Plan
from espalier.progress import Printer, values_text
from espalier.session import Session
from espalier.v1 import graph_pb2, ops_pb2, program_pb2

if TYPE_CHECKING:
    from espalier.core.model import FFModel

# Models of this program that hold workers.
_holders: weakref.WeakSet[Running] = weakref.WeakSet()


class Running(Feeding):
    """Compilation and training."""

    _penalties: dict[str, tuple[float, float]]

    def __init__(self, ffconfig: FFConfig) -> None:
        super().__init__(ffconfig.batch_size)
        self._config = ffconfig
        self._optimizer: optimizers.Optimizer | None = None
        self._kept: list[Tensor] = []
        self._opened: Session | None = None
        self._parked: dict[str, Array] | None = None  # parameters of a session that another model has replaced
        self._values: dict[str, float] = {}
        self._outputs: dict[str, Array] = {}  # of the last forward of COMP_MODE_INFERENCE

    # Compilation.

    @property
    def optimizer(self) -> optimizers.Optimizer | None:
        """The optimizer; setting it before compile is the same as giving it to compile."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self.set_optimizer(optimizer)

    def set_optimizer(self, optimizer: Any) -> None:
        """An SGDOptimizer or AdamOptimizer, one of espalier.optimizers, or a name."""
        if self._opened is not None:
            raise FailedPrecondition("the model runs already; close() it before it gets another optimizer")
        self._optimizer = optimizers.get(optimizer, self)  # type: ignore[arg-type]

    def set_sgd_optimizer(self, optimizer: optimizers.SGDOptimizer) -> None:
        """As set_optimizer."""
        self.set_optimizer(optimizer)

    def set_adam_optimizer(self, optimizer: optimizers.AdamOptimizer) -> None:
        """As set_optimizer."""
        self.set_optimizer(optimizer)

    def compile(
        self,
        optimizer: Any = None,
        loss_type: LossType | str | None = None,
        metrics: Sequence[MetricsType | str] | None = None,
        comp_mode: CompMode | None = None,
        *,
        loss: LossType | str | None = None,
    ) -> None:
        """Adds the loss and metrics to the result of the last layer, and lets the daemon check the model.

        optimizer: as set_optimizer. loss: another name of loss_type. A crossentropy of a model that does not end in
        softmax takes its result as logits, with an EspalierWarning. The plan is made when the workers are leased: at
        init_layers, or the first call that needs them. A second compile begins with new parameters.

        InvalidArgument naming the layer and the line that made it, or the argument.
        """
        if not self._layers:
            raise FailedPrecondition("compile: the model has no layers")
        self.close()
        if optimizer is not None:
            self.set_optimizer(optimizer)
        self._parked = None
        self._loaders.pop(LABEL, None)
        self._mode = CompMode(CompMode.TRAINING if comp_mode is None else comp_mode)
        given = loss_type if loss_type is not None else loss
        if given is None and self._mode == CompMode.INFERENCE:
            given = LossType.LOSS_IDENTITY
        final = self.get_last_layer().outputs[0]
        shown = [metric_of(metric) for metric in metrics or ()]
        compiled = add_loss(self._graph, self._batch_size, final, loss_type_of(given), shown)
        for tensor in self._kept:
            compiled.graph.output(f"kept {tensor.name}", compiled.values[tensor.value.index])
        self._check(compiled)
        self._compiled, self._compiled_graph = compiled, compiled.graph
        self._message()

    def _client(self) -> Client:
        return self._config.client or default_client()

    def _check(self, compiled: Compiled) -> None:
        # Values of parameters are not needed for types.
        graph = graph_pb2.Graph()
        graph.CopyFrom(compiled.graph.proto)
        for value in graph.values:
            if value.kind == graph_pb2.PARAMETER:
                value.ClearField("data")
        request = ops_pb2.InferRequest(graph=graph, batch_size=self._batch_size)
        try:
            reply = self._client().call("Ops", "Infer", request)
        except InvalidArgument as error:
            raise InvalidArgument(compiled.graph.with_sources(str(error))) from None
        for layer in self._layers.values():
            for tensor in layer.outputs:
                dims = tuple(reply.types[compiled.values[tensor.value.index].index].dims)
                if dims != tensor.dims:
                    raise AssertionError(f"layer {layer.name}: dims {list(tensor.dims)}, the daemon says {list(dims)}")

    def _message(self) -> program_pb2.Optimizer:
        # Without an optimizer nothing is updated; a session must have one.
        message = (self._optimizer or optimizers.SGDOptimizer(None)).proto()
        for name, (l1, l2) in self._penalties.items():
            message.regularizers.add(parameter=name, l1=l1, l2=l2)
            message.report_penalties = True
        return message

    @property
    def label_tensor(self) -> Tensor:
        """The labels, for create_data_loader. FailedPrecondition before compile, or if the loss takes none."""
        label = self._need().label
        if label is None:
            raise FailedPrecondition("LOSS_IDENTITY takes no labels")
        return label

    def keep(self, *tensors: Tensor) -> None:
        """Tensors besides the model's result that get_tensor shall read. FailedPrecondition after compile."""
        self._check_open()
        self._kept.extend(tensor for tensor in tensors if tensor not in self._kept)

    # The session.

    def init_layers(self) -> None:
        """Leases workers, plans, and makes the parameters. The first call that needs them does it, too.

        ResourceExhausted if too few workers are idle, or the model does not fit them.
        """
        self._session()

    def _session(self) -> Session:
        if self._opened is not None:
            return self._opened
        compiled = self._need()
        data = self._whole_data()
        try:
            session = self._open(compiled, data, 0.0)
        except ResourceExhausted:
            others = [model for model in list(_holders) if model is not self]
            for model in others:
                model._park()
            session = self._open(compiled, data, 60.0)
        self._uploaded = data
        if self._parked is not None:
            session.set_parameters(self._parked)
            self._warn_of_new_moments()
            self._parked = None
        self._opened = session
        _holders.add(self)
        for note in session.notes:
            warn(note)
        self._export()
        return session

    def _open(self, compiled: Compiled, data: Mapping[str, SingleDataLoader], wait: float) -> Session:
        settle(compiled.graph, self._config.seed)
        return Session(
            compiled.graph,
            {name: loader.array for name, loader in data.items()} or None,
            optimizer=self._message(),
            batch_size=self._batch_size,
            seed=self._config.seed,
            search=self._config.search(),
            precision=self._config.precision,
            wait_seconds=wait,
            shuffle=False,
            client=self._client(),
        )

    def _park(self) -> None:
        """Frees the workers; the parameters are kept, and set again when the model is used again."""
        if self._opened is None:
            return
        self._parked = self._opened.parameters()
        self._trained = self._opened.updates > 0
        self.close()

    _trained = False

    def _warn_of_new_moments(self) -> None:
        message = self._message()
        if self._trained and (message.name != "sgd" or message.attributes["momentum"].f > 0):
            warn(
                "another model had taken the workers: this one goes on with its parameters, and the moments of its "
                "optimizer begin anew; with FFConfig.max_devices two models have workers of their own"
            )

    def close(self) -> None:
        """Frees the workers. Parameters are gone unless they were read; the next use begins with new ones."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None
        self._uploaded = {}
        _holders.discard(self)

    def __enter__(self) -> FFModel:
        return self  # type: ignore[return-value]

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def plan(self) -> Plan:
        """The plan by which the model runs."""
        return self._session().plan

    def save(self, name: str) -> str:
        """Registers the parameters as a model artifact, another version each time; returns its name."""
        return self._session().save(name)

    def _export(self) -> None:
        config, plan = self._config, self.plan
        if config.export_strategy_file is not None:
            plan.save(config.export_strategy_file)
        if config.task_graph_file is None and config.computation_graph_file is None:
            return
        from espalier.core.dot import export_dot

        export_dot(self._client(), self._need().graph, self._batch_size, plan, config)

    def _learning_rate_changed(self, optimizer: optimizers.Optimizer) -> None:
        if optimizer is self._optimizer and self._opened is not None:
            self._opened.set_learning_rate(optimizer.learning_rate)

    # The loop.

    def forward(self, seq_length: int | None = None) -> dict[str, float]:
        """Computes the loss and metrics of the batch that the inputs hold; returns them by name.

        In COMP_MODE_INFERENCE it computes the result, without dropout, and returns nothing.
        """
        batch = self._batch(seq_length)
        if self._mode == CompMode.INFERENCE:
            self._outputs = self._session().predict(batch)
            return {}
        session = self._session()
        if self._uploaded and isinstance(batch, Mapping):
            batch = self._batch(seq_length)  # the session has just got the loaders' examples
        values = session.forward(batch)
        self._values = dict(session.means)
        return values

    def zero_gradients(self) -> None:
        """Sets all gradients to zero."""
        self._session().zero_gradients()

    def backward(self, seq_length: int | None = None) -> None:
        """Adds the gradients of the last forward to those since zero_gradients."""
        self._session().backward()

    def update(self) -> None:
        """Updates all parameters by their gradients. FailedPrecondition without an optimizer."""
        self._need_optimizer()
        self._session().update()

    def _need_optimizer(self) -> None:
        if self._optimizer is None:
            raise FailedPrecondition("compile got no optimizer, by which the parameters would be updated")

    def compute_metrics(self) -> None:
        """Nothing: forward reports the metrics of its batch."""

    def reset_metrics(self) -> None:
        """Begins the means of get_perf_metrics anew."""
        self._values = {}
        if self._opened is not None:
            self._opened.reset_metrics()

    def get_perf_metrics(self) -> PerfMetrics:
        """Means of loss and metrics over the batches since reset_metrics; after eval, what it found."""
        return PerfMetrics(self._values)

    def prefetch(self) -> None:
        """Nothing: the daemon loads ahead by itself."""

    # fit and eval.

    def fit(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1, *, verbose: int = 1
    ) -> list[dict[str, float]]:
        """Trains on the data in order; returns the means of each epoch's loss and metrics.

        x, y: data loaders or arrays, several as a list. Examples that do not fill the last batch are skipped, as in
        FlexFlow. verbose: 1 shows a bar (in a log, a line every 10 seconds) and a line for each epoch, 0 nothing.
        """
        check_count("epochs", epochs)
        self._need_optimizer()
        loaders = self._loaders_of("fit", x, y, batch_size)
        steps = loaders[0].num_samples // self._batch_size
        if steps == 0:
            raise InvalidArgument(f"fit: {loaders[0].num_samples} examples do not fill a batch of {self._batch_size}")
        session, history, printer = self._session(), [], Printer(1 if verbose else 0)
        for epoch in range(epochs):
            began = time.perf_counter()
            for loader in loaders:
                loader.reset()
            self.reset_metrics()
            for step in range(steps):
                before = time.perf_counter()
                for loader in loaders:
                    loader.next_batch(self)  # type: ignore[arg-type]
                values = session.step(self._batch())
                where, done = f"epoch {epoch + 1}/{epochs} ", epoch * steps + step + 1
                printer.step(done, steps * epochs, time.perf_counter() - before, values, where)
                if self._config._prints_steps and (step + 1) % self._config.print_freq == 0:
                    printer.message(f"{where}step {step + 1}/{steps}: {values_text(values)}")
            self._values = dict(session.means)
            history.append(dict(self._values))
            took = time.perf_counter() - began
            printer.message(f"epoch {epoch + 1}/{epochs}: {values_text(self._values)}, {took:.3g} s")
        printer.suspend()
        return history

    def eval(self, x: Any = None, y: Any = None, batch_size: int | None = None) -> dict[str, float]:
        """Loss and metrics over all examples, without dropout and with running statistics. Arguments as fit."""
        loaders = self._loaders_of("eval", x, y, batch_size)
        session = self._session()
        if self._uploaded and all(self._uploaded.get(loader.column) is loader for loader in loaders):
            self._values = session.evaluate(range(loaders[0].num_samples))
        else:
            self._values = session.evaluate(
                self._with_length({loader.column: loader.array for loader in loaders}, None)
            )
        return dict(self._values)

    def predict(self, x: Any) -> Array:
        """The result of the last layer for any number of examples, without dropout. x: arrays or loaders, as fit."""
        given = list(x) if isinstance(x, (list, tuple)) else [x]
        inputs = self._read_inputs()
        if len(given) != len(inputs):
            raise InvalidArgument(f"predict: {len(given)} arrays for {len(inputs)} inputs")
        arrays = {
            tensor.name: item.array if isinstance(item, SingleDataLoader) else np.asarray(item)
            for item, tensor in zip(given, inputs, strict=True)
        }
        return self._session().predict(self._with_length(arrays, None), ["output"])["output"]

    # Tensors.

    def _elements(self, tensor: Tensor) -> Array:
        if self._column(tensor) is not None:
            if tensor._fed is None:
                # As a mapped tensor of FlexFlow, whose elements the program writes into the array.
                tensor._fed = Feed(np.zeros(tensor.dims, tensor.dtype), None)
            return tensor._fed.array if tensor._fed.source is None else tensor._fed.array.copy()
        final = self.get_last_layer().outputs[0]
        if tensor is not final and tensor not in self._kept:
            raise FailedPrecondition(
                f"elements of {tensor.name} are not kept: ffmodel.keep(tensor), before compile, keeps them"
            )
        name = "output" if tensor is final else f"kept {tensor.name}"
        if self._mode == CompMode.INFERENCE:
            if name not in self._outputs:
                raise FailedPrecondition("call forward() first")
            return self._outputs[name]
        return self._session().get(name, "output")

    def get_last_layer(self) -> Op:
        """The layer that was added last."""
        return self._layers[len(self._layers) - 1]

    def parameters(self) -> dict[str, Array]:
        """All parameters by name, running statistics included."""
        return self._session().parameters()

    def set_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Sets parameters by name; the others stay."""
        self._session().set_parameters(arrays)

    def get_tensor_by_id(self, id: int) -> Parameter:
        """A parameter by its number over all layers."""
        found = [parameter for layer in self._layers.values() for parameter in layer.parameters]
        if not 0 <= id < len(found):
            raise InvalidArgument(f"the model has {len(found)} parameters, not one of number {id}")
        return found[id]
