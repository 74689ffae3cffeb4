"""evaluate, predict, and training and evaluation batch by batch, in a session that the model keeps open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from espalier import callbacks as callback_classes
from espalier.client import default_client
from espalier.counts import check_counts
from espalier.errors import FailedPrecondition, InvalidArgument
from espalier.keras import backend, validation
from espalier.keras.arrays import WEIGHTS, Array, Source
from espalier.keras.heads import LossGraph, add_predictions, ensure_trainable
from espalier.keras.model_session import ModelSession, Wanted
from espalier.keras.optimizers import LearningRateSchedule
from espalier.keras.tensor import KerasTensor, Shape, flatten, transform
from espalier.keras.training import Trainer
from espalier.progress import number
from espalier.spelling import checked
from espalier.v1 import program_pb2

if TYPE_CHECKING:
    from espalier.callback import Callback
    from espalier.client import Client
    from espalier.keras.layer import Layer
    from espalier.keras.network import Network
    from espalier.session import Session
    from espalier.session_state import SessionState

_CHUNK_BYTES = 16 << 20


class Inference(Trainer):
    """The part of a model that computes with its weights.

    The first call opens a session on idle workers, with the plan that the coordinator finds for them. It stays open for
    the next calls, and is closed after 30 seconds without one, or when another training or session of this program
    needs the workers. In callbacks of a fit that trains in a session, calls use that session.
    """

    _kept: ModelSession | None = None

    # Sessions.

    @contextlib.contextmanager
    def _session(
        self,
        network: Network,
        shapes: Sequence[Shape],
        batch_size: int,
        *,
        client: Client | None,
        search: Mapping[str, object] | None,
        losses: bool = True,
        weighted: bool = False,
        exact_batch: bool = False,
    ) -> Iterator[tuple[Session, LossGraph, ModelSession | None]]:
        """A session with the model's weights; with `losses`, its losses and metrics."""
        if self._live is not None:
            yield self._running(shapes, batch_size, weighted, exact_batch)
            return
        model = cast("Layer", self)
        for variable in model.weights:
            if variable.locked is not None:
                raise variable.locked
        if self._compiled is None and losses:
            raise InvalidArgument(f"{self.name}: call compile(optimizer, loss, metrics) before")
        client = client or default_client()
        message = program_pb2.Optimizer(name="sgd") if self._compiled is None else self._message_of_weights()
        model._apply_trainable(True)
        wanted = Wanted(
            client,
            network,
            self._compiled if losses else None,
            tuple(shapes),
            message,
            tuple(v.path for v in model.weights if not v.trainable),
            batch_size,
            exact_batch,
            dict(search or {}),
        )
        kept = self._kept
        if kept is None or kept.closed or kept.session.ended or not wanted.fits(kept.wanted):
            kept = self._open(wanted)
        with kept.use() as session:
            yield session, kept.built, kept

    def _message_of_weights(self) -> program_pb2.Optimizer:
        model = cast("Layer", self)
        model._name_weights()
        return self._message({variable.path: variable for variable in model.weights})

    def _open(self, wanted: Wanted) -> ModelSession:
        if self._kept is not None:
            self._kept.release()  # its weights and the state of the optimizer are needed first
        if self._compiled is None:
            built = self._predicting(wanted)
        else:
            wanted.compiled = self._compiled
            # By weights it also evaluates what does not fill a batch, of any losses and metrics.
            built = self._built(wanted.network, wanted.shapes, weighted=True, fills=True)
        ensure_trainable(built.lowering)
        seed = int(backend.generator().integers(1, 2**31))
        self._kept = ModelSession(wanted, built, seed, self._state, self._closed)
        return self._kept

    def _closed(self, state: Any) -> None:
        self._state = state

    def _optimizer_state(self) -> SessionState | None:
        """The state of the optimizer, as it is now; None without one from a session."""
        if self._live is not None and self._live.run is not None:
            return None if self._live.run.session is None else self._live.run.session.state()
        kept = self._kept
        if kept is not None and kept.trained and not kept.closed:
            with kept.use() as session:
                return session.state()
        return self._state

    def _predicting(self, wanted: Wanted) -> LossGraph:
        # A model that was not compiled: its loss is the mean of an output, and is never trained.
        network = wanted.network
        g, values = self.to_graph(dict(zip(network.input_names(), wanted.shapes, strict=True)))
        floats = next((v.tensor for v in values if v.dtype == "float32"), None)
        g.graph.output("loss", g.op("identity_loss", [floats or g.cast(values[0].tensor, "float32")], shape=()))
        names = add_predictions(g, network, values)
        return LossGraph(g, network, list(wanted.shapes), [], [], False, False, [], names)

    def _running(
        self, shapes: Sequence[Shape], batch_size: int, weighted: bool, exact_batch: bool
    ) -> tuple[Session, LossGraph, None]:
        """The session of a fit, for its callbacks."""
        assert self._live is not None
        built, run = self._live.built, self._live.run
        assert run is not None
        session = run.needs_session("evaluate and predict")
        if list(shapes) != built.shapes:
            raise InvalidArgument(f"{self.name} is trained on inputs of shapes {built.shapes}, not {list(shapes)}")
        if weighted and not built.counted:
            raise InvalidArgument(
                f"{self.name} is trained without weights of examples: give fit a sample_weight (of ones), too"
            )
        if exact_batch and batch_size != session.batch_size:
            raise InvalidArgument(f"{self.name} is trained by batches of {session.batch_size}, not {batch_size}")
        self._live.push()
        return session, built, None

    # Whole data.

    @checked
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        return_dict: bool = False,
        *,
        client: Client | None = None,
        search: Mapping[str, object] | None = None,
    ) -> Any:
        """Loss and metrics of all examples, without dropout and with running statistics.

        x, y, sample_weight: as `fit` takes them; steps: so many batches of an iterable, or of batch_size. Returns the
        loss, or a list of loss and metrics, or with return_dict a dict. client, search: as espalier.fit takes them.
        """
        check_counts(batch_size=batch_size, steps=steps)
        source = Source(x, y, sample_weight, None, "evaluate")
        size = batch_size or source.batch_size or self._default_batch_size
        if steps is not None and source.examples is not None and source.examples > int(steps) * size:
            source.take_last(source.examples - int(steps) * size)
        told = self._told(callbacks)
        network = self._network_for(source)
        shapes = source.input_shapes(network)
        totals = validation.Totals()
        for callback in told:
            callback.on_test_begin({})
        with self._session(network, shapes, size, client=client, search=search, weighted=source.weighted) as (
            s,
            built,
            _,
        ):
            source.weighted = source.weighted or built.weighted
            done = 0
            for columns in source.batches(network, built.targets, None if steps is None else int(steps)):
                for part in _parts(columns, size) if told else [columns]:
                    for callback in told:
                        callback.on_test_batch_begin(done, {})
                    validation.evaluate(s, built, part, size, totals)
                    for callback in told:
                        callback.on_test_batch_end(done, totals.means())
                    done += 1
            totals.add_to_loss(validation.penalties(built))
        logs = totals.means()
        for callback in told:
            callback.on_test_end(logs)
        if verbose not in (0, "0"):
            print("  ".join(f"{name} {number(value)}" for name, value in _ordered(logs, built).items()))
        return logs if return_dict else _listed(logs, built)

    @checked
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        client: Client | None = None,
        search: Mapping[str, object] | None = None,
    ) -> Any:
        """The outputs of all examples, as arrays in the structure of the model's outputs.

        x: arrays as `fit` takes them, or an iterable of batches of x, (x, y) or (x, y, sample_weight). The model need
        not be compiled. client, search: as espalier.fit takes them.
        """
        check_counts(batch_size=batch_size, steps=steps)
        source = Source(x, None, None, None, "predict", labels=False)
        size = batch_size or source.batch_size or self._default_batch_size
        if steps is not None and source.examples is not None and source.examples > int(steps) * size:
            source.take_last(source.examples - int(steps) * size)
        told = self._told(callbacks)
        network = self._network_for(source)
        shapes = source.input_shapes(network)
        found: list[list[Array]] = [[] for _ in network.outputs]
        for callback in told:
            callback.on_predict_begin({})
        compiled = self._compiled is not None
        with self._session(network, shapes, size, client=client, search=search, losses=compiled) as (s, built, _):
            done = 0
            for columns in source.batches(network, [], None if steps is None else int(steps)):
                for part in _parts(columns, size if told else _chunk(built, columns, s.batch_size)):
                    for callback in told:
                        callback.on_predict_batch_begin(done, {})
                    made = s.predict(part, built.predictions)
                    for arrays, name in zip(found, built.predictions, strict=True):
                        arrays.append(made[name])
                    for callback in told:
                        outputs = [arrays[-1] for arrays in found]
                        callback.on_predict_batch_end(done, {"outputs": _like(network, outputs)})
                    done += 1
        for callback in told:
            callback.on_predict_end({})
        return _like(network, [np.concatenate(a) if len(a) > 1 else a[0] for a in found])

    def _told(self, callbacks: Sequence[Any] | None) -> list[Callback]:
        prepared = callback_classes.prepared(callbacks or (), self, 1)
        return [callback for callback in prepared if isinstance(callback, callback_classes.Callback)]

    # Single batches.

    @checked
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
        *,
        client: Client | None = None,
        search: Mapping[str, object] | None = None,
    ) -> Any:
        """One step with these examples; returns their loss and metrics.

        The optimizer's state and schedule go on from call to call. Batches of another size open another session.
        """
        return self._on_batch(x, y, sample_weight, class_weight, return_dict, client, search, train=True)

    @checked
    def test_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        return_dict: bool = False,
        *,
        client: Client | None = None,
        search: Mapping[str, object] | None = None,
    ) -> Any:
        """Evaluates these examples; returns loss and metrics."""
        return self._on_batch(x, y, sample_weight, None, return_dict, client, search, train=False)

    def _on_batch(
        self,
        x: Any,
        y: Any,
        sample_weight: Any,
        class_weight: Mapping[int, float] | None,
        return_dict: bool,
        client: Client | None,
        search: Mapping[str, object] | None,
        *,
        train: bool,
    ) -> Any:
        source = Source(x, y, sample_weight, class_weight, "train_on_batch" if train else "test_on_batch")
        count = source.examples
        if count is None:
            raise InvalidArgument("train_on_batch and test_on_batch take arrays, not an iterable")
        network = self._network_for(source)
        shapes = source.input_shapes(network)
        totals = validation.Totals()
        with self._session(
            network, shapes, count, client=client, search=search, weighted=source.weighted, exact_batch=train
        ) as (session, built, kept):
            source.weighted = source.weighted or built.weighted
            if not train:
                (columns,) = source.batches(network, built.targets)
                validation.evaluate(session, built, columns, count, totals)
                totals.add_to_loss(validation.penalties(built))
            else:
                source.follow(built)
                (columns,) = source.batches(network, built.targets)
                self._point_out_metrics("train_on_batch")
                values = self._step(session, columns, kept)
                weight = float(columns[WEIGHTS].sum(dtype=np.float64)) if built.weighted else count
                totals.add(built, values, count, weight)
        logs = totals.means()
        return logs if return_dict else _listed(logs, built)

    def _step(self, session: Session, columns: Mapping[str, Array], kept: ModelSession | None) -> dict[str, float]:
        rate = self.optimizer.learning_rate
        if kept is None:
            values = session.step(columns)
            assert self._live is not None
            self._live.moved()
            return values
        if not isinstance(rate, LearningRateSchedule):
            kept.set_learning_rate(rate)
        values = session.step(columns)
        kept.weights.moved()
        kept.trained = self._trained_before = True
        return values

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs of these examples."""
        return self.predict(x, verbose=0)

    def reset_metrics(self) -> None:
        """Nothing: as in Keras 3, every call reports the values of its own examples."""

    @property
    def metrics_names(self) -> list[str]:
        """Names of what `evaluate` and train_on_batch return. Keras says "compile_metrics" for all metrics at once."""
        if self._network is None:
            return ["loss"]
        shapes = [tensor.shape for tensor in self._network.inputs]
        built = self._kept.built if self._kept is not None else self._built(self._network, shapes, False, False)
        return [report.name for report in built.reports]

    def release_workers(self) -> None:
        """Ends the session that was kept open for the next call; the weights stay."""
        if self._kept is not None:
            self._kept.release()

    def _compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call on arrays. NotImplemented for a call on tensors, which connects layers."""
        leaves = flatten(args)
        if not leaves or any(isinstance(leaf, KerasTensor) for leaf in leaves) or len(args) > 1:
            return NotImplemented
        if not all(hasattr(leaf, "__array__") for leaf in leaves):
            return NotImplemented
        if kwargs.get("training"):
            raise FailedPrecondition(
                f"{self.name}: arrays are computed without dropout; training=True is for fit and train_on_batch"
            )
        return self.predict(args[0], verbose=0)


def _parts(columns: Mapping[str, Array], size: int) -> Iterator[dict[str, Array]]:
    count = len(next(iter(columns.values())))
    for first in range(0, count, size):
        yield {name: array[first : first + size] for name, array in columns.items()}


def _chunk(built: LossGraph, columns: Mapping[str, Array], batch: int) -> int:
    """Examples of one command: whole batches, of which inputs and outputs stay small."""
    each = sum(array.nbytes // max(1, len(array)) for array in columns.values())
    specs = [(shape, t.dtype) for shape, t in zip(built.shapes, built.network.inputs, strict=True)]
    each += sum(4 * int(np.prod([d or 1 for d in shape])) for shape, _ in built.network.infer(specs))
    return max(1, _CHUNK_BYTES // max(1, each * batch)) * batch


def _like(network: Network, outputs: Sequence[Array]) -> Any:
    leaves = iter(outputs)
    return transform(network.outputs_structure, lambda _: next(leaves))


def _ordered(logs: Mapping[str, float], built: LossGraph) -> dict[str, float]:
    return {report.name: logs[report.name] for report in built.reports if report.name in logs}


def _listed(logs: Mapping[str, float], built: LossGraph) -> Any:
    found = list(_ordered(logs, built).values())
    return found[0] if len(found) == 1 else found


__all__ = ["Inference"]
