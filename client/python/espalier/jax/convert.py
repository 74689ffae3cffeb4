"""to_graph: a loss function of JAX as a graph of the daemon."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import export

from espalier.errors import InvalidArgument, Unsupported, UnsupportedOperators
from espalier.graph import Graph
from espalier.jax import batch_stats, passes
from espalier.jax import convert_control as _control
from espalier.jax import convert_conv as _conv
from espalier.jax import convert_dot as _dot
from espalier.jax import convert_elementwise as _elementwise
from espalier.jax import convert_gather as _gather
from espalier.jax import convert_pool as _pool
from espalier.jax import convert_random as _random
from espalier.jax import convert_reduce as _reduce
from espalier.jax import convert_shape as _shape
from espalier.jax import refused as _refused
from espalier.jax.context import ACCEPTED, Context
from espalier.jax.interpret import Interpreter, wire_of
from espalier.jax.ir import MISSING, Program, Wire, is_static
from espalier.jax.values import Any3, Opaque, Refused, Value, of_wire

_HANDLERS = (_control, _conv, _dot, _elementwise, _gather, _pool, _random, _reduce, _shape, _refused)
BATCH = "batch"


@dataclass
class Converted:
    """A loss as a graph, and how its tensors correspond to the caller's."""

    graph: Graph
    inputs: list[str]  # names of the graph's inputs, in the order of the leaves of the batch
    params: list[str]  # names of the parameters, in the order of the leaves of params
    state: list[str]  # names of the state, in the order of the leaves of state; empty: a leaf that is not kept
    permutations: dict[str, tuple[int, ...]]  # parameters that are stored transposed: dimension d is perm[d]
    notes: list[str]  # what the user may not expect, one sentence each
    batch_size: int  # that the graph was made for
    any_batch_size: bool  # whether it fits other ones
    nodes: Counter[str] = field(default_factory=Counter)  # operators
    aux: list[str] = field(default_factory=list)  # outputs of the leaves of aux; empty: one that is no output

    def restored(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A parameter or state as the caller has it, from the array that the daemon keeps."""
        perm = self.permutations.get(name)
        if perm is not None:
            array = np.ascontiguousarray(np.transpose(array, np.argsort(perm)))
        return array

    def stored(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A parameter or state as the daemon keeps it: undoes `restored`."""
        perm = self.permutations.get(name)
        return array if perm is None else np.ascontiguousarray(np.transpose(array, perm))


def leaf_name(path: Any) -> str:
    """ "params/Dense_0/kernel" of a path of jax.tree_util."""
    parts = []
    for key in path:
        for attribute in ("key", "name", "idx"):
            if hasattr(key, attribute):
                parts.append(str(getattr(key, attribute)))
                break
    if len(parts) > 1 and parts[-1] in ("value", "get_value"):
        parts.pop()  # flax.nnx's variables
    return "/".join(parts)


def to_graph(
    loss_fn: Callable[..., Any],
    params: Any,
    example_batch: Any,
    *,
    state: Any = None,
    has_aux: bool = False,
    rng: Any = None,
    batch_size: int | None = None,
    unroll_limit: int = 20000,
    name: str = "",
    lazy_layout: bool = True,
    aux_arrays: bool = False,
) -> Converted:
    """Converts a loss function to a graph whose output "loss" training minimizes.

    loss_fn(params, *example_batch) of a tuple, or loss_fn(params, example_batch) of a dict or an array, gives the loss,
    a float32 scalar. Only shapes and types of the example count; dimension 0 is the batch, whose size stays open.

    With `state`, loss_fn(params, state, ...) gives (loss, new state): running statistics of batch normalization, or
    random counters. With `has_aux` it gives (loss, aux), or (loss, (new state, aux)); scalars of aux are reported as
    metrics by name. With `rng`, loss_fn gets the keyword argument rng, a random key.

    `batch_size` is that of the job, for losses that compute with it; default: that of the example. Loops are unrolled
    up to `unroll_limit` operations. `lazy_layout=False` keeps transpositions where they are written. With `aux_arrays`
    the arrays of aux, whose dimension 0 is the batch, are outputs for predictions.

    Raises UnsupportedOperators that lists all primitives without a counterpart, InvalidArgument for other arguments.
    """
    arguments = example_batch if isinstance(example_batch, tuple) else (example_batch,)
    leaves, tree = jax.tree_util.tree_flatten_with_path(arguments)
    input_names = _input_names(loss_fn, example_batch, leaves, state is not None)
    rows = _rows(leaves, input_names)
    program = Program()
    context = Context(program, batch_size or rows, lazy_layout)
    symbol = export.symbolic_shape(BATCH, constraints=[f"{BATCH} >= 2"])[0]
    specs = []
    for (_, leaf), label in zip(leaves, input_names, strict=True):
        dtype = _dtype(label, leaf)
        specs.append(jax.ShapeDtypeStruct((symbol, *np.shape(leaf)[1:]), dtype))
    batch_spec = jax.tree_util.tree_unflatten(tree, specs)

    structs = jax.tree_util.tree_map(_struct, (params, state))
    keyword = {} if rng is None else {"rng": rng}

    def call(params: Any, state: Any, batch: Any, keyword: Any) -> Any:
        first = (params,) if state is None else (params, state)
        loss, new, aux = _split(loss_fn(*first, *batch, **keyword), state is not None, has_aux)
        if isinstance(new, tuple) and len(new) == 2 and not has_aux:
            same = [jax.tree_util.tree_structure(tree) for tree in (new, new[0], state)]
            if same[0] != same[2] and same[1] == same[2]:
                raise InvalidArgument("loss_fn returns (loss, (new state, aux)): give has_aux=True")
        return loss, new, aux

    jaxpr, shapes = _trace(call, structs, batch_spec, keyword)
    values: list[Any3] = []
    param_names: list[str] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        param_names.append(_unique(leaf_name(path) or "params", param_names + input_names))
        values.append(_parameter(program, param_names[-1], leaf, trainable=True))
    state_names: list[str] = []
    state_values: list[Any3] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        label = _unique(leaf_name(path) or "state", param_names + input_names + state_names)
        state_names.append(label)
        state_values.append(_state(program, label, leaf))
    values += state_values
    for label, spec in zip(input_names, specs, strict=True):
        wire = program.input(label, spec.shape, spec.dtype.name)
        context.like = context.like or wire
        values.append(of_wire(wire))
    for number, leaf in enumerate(jax.tree_util.tree_leaves(keyword)):
        kind = "key" if str(leaf.dtype).startswith("key<") else "raw"
        values.append(Opaque(kind, ("argument", number), np.shape(leaf), str(leaf.dtype)))

    interpreter = Interpreter(context, unroll_limit)
    results = interpreter.run(jaxpr.jaxpr, jaxpr.consts, values)
    outputs = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), results)
    aux = _name_outputs(context, outputs, shapes, aux_arrays)
    updates = _updates(context, outputs[1], state_values, state_names)

    program.sweep()
    passes.fuse_softmax(program)
    passes.merge_scalars(program)
    program.sweep()
    passes.drop_cancelling_stops(program)
    passes.fuse_dropout(program)
    passes.fuse_bias(program)
    passes.fuse_cross_entropy(program)
    batch_stats.fuse(context, updates)
    passes.name_means(program)
    program.sweep()
    _refuse_missing(program)
    permutations = passes.store_transposed(program) if lazy_layout else {}
    program.sweep()
    graph = program.to_graph(name or getattr(loss_fn, "__name__", "loss").strip("<>"), _size_of)
    kept = {wire.name for wire in program.parameters}
    read = {id(wire) for node in program.nodes for wire in node.inputs}
    unread = [wire.name for wire in program.parameters if wire.trainable and id(wire) not in read]
    if unread:
        context.note(f"the loss does not read {', '.join(unread)}: it stays as it is, without weight decay, too")
    return Converted(
        graph,
        input_names,
        param_names,
        [label if label in kept else "" for label in state_names],
        permutations,
        context.notes,
        context.batch_size,
        not context.uses_batch_size,
        Counter(node.op for node in program.nodes),
        aux,
    )


def _size_of(dim: Any) -> int | None:
    return int(dim) if is_static(dim) else None


def _unique(name: str, taken: list[str]) -> str:
    number, result = 1, name
    while result in taken:
        result, number = f"{name}_{number}", number + 1
    return result


def _rows(leaves: list[Any], names: list[str]) -> int:
    """The batch size of an example."""
    if not leaves:
        raise InvalidArgument("example_batch has no arrays")
    sizes = {name: np.shape(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    scalars = [name for name, shape in sizes.items() if not shape]
    if scalars:
        raise InvalidArgument(
            f"example_batch: {', '.join(scalars)} has no dimensions; dimension 0 is the batch. Numbers that are no "
            "data: let loss_fn close over them"
        )
    counts = {shape[0] for shape in sizes.values()}
    if len(counts) != 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in sizes.items())
        raise InvalidArgument(f"example_batch: dimension 0 is the batch and must be the same everywhere; got {listed}")
    return int(counts.pop())


def _dtype(name: str, leaf: Any) -> np.dtype[Any]:
    """The type in which a column arrives."""
    found = np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    dtype: np.dtype[Any] = np.dtype(np.float32) if found.name == "float64" else found
    if dtype.name == "int64" and not jax.config.jax_enable_x64:
        dtype = np.dtype(np.int32)
    if dtype.name not in ACCEPTED:
        raise InvalidArgument(f"example_batch: {name} is of type {found.name}; accepted are {', '.join(ACCEPTED)}")
    return dtype


def _struct(leaf: Any) -> Any:
    if hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)
    return jax.ShapeDtypeStruct((), np.asarray(leaf, dtype=jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)).dtype)


def _input_names(loss_fn: Any, batch: Any, leaves: list[Any], has_state: bool) -> list[str]:
    """Names of the batch's arrays: keys of a dict, otherwise the names of loss_fn's arguments."""
    try:
        parameters = list(inspect.signature(loss_fn).parameters)[2 if has_state else 1 :]
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for path, _ in leaves:
        position = int(path[0].idx)
        rest = leaf_name(path[1:])
        own = parameters[position] if position < len(parameters) else f"input{position}"
        label = rest if rest and isinstance(batch, Mapping) else "/".join(p for p in (own, rest) if p)
        names.append(_unique(label, names))
    return names


def _split(result: Any, has_state: bool, has_aux: bool) -> tuple[Any, Any, Any]:
    """Loss, new state and aux of what loss_fn returns."""
    if not has_state and not has_aux:
        return _without_aux(result), None, None
    if not isinstance(result, tuple) or len(result) != 2:
        wanted = (
            "(loss, (new state, aux))" if has_state and has_aux else "(loss, new state)" if has_state else "(loss, aux)"
        )
        raise InvalidArgument(f"loss_fn returns {type(result).__name__}; expected {wanted}")
    loss, rest = result
    if has_state and has_aux:
        return loss, rest[0], rest[1]
    return (_without_aux(loss), rest, None) if has_state else (loss, None, rest)


def _without_aux(loss: Any) -> Any:
    if isinstance(loss, (tuple, list, Mapping)):
        raise InvalidArgument(
            f"loss_fn returns a {type(loss).__name__} of {len(loss)} in place of the loss, a scalar; if it returns "
            "(loss, aux), give has_aux=True"
        )
    return loss


def _trace(call: Any, structs: Any, batch_spec: Any, keyword: Any) -> tuple[Any, Any]:
    try:
        traced: tuple[Any, Any] = jax.make_jaxpr(call, return_shape=True)(*structs, batch_spec, keyword)
        return traced
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else ""
        if "InconclusiveDimensionOperation" in type(error).__name__ or "symbolic dimension" in str(error):
            raise InvalidArgument(
                f"loss_fn decides by the batch size, which is open in a graph: {type(error).__name__}: {text}. Shapes "
                "may contain x.shape[0], but not conditions, or quotients that some batch sizes do not have"
            ) from error
        raise


def _parameter(program: Program, name: str, leaf: Any, trainable: bool) -> Value:
    array = np.asarray(leaf, None if hasattr(leaf, "dtype") else _struct(leaf).dtype)
    if array.dtype.name not in ACCEPTED:
        raise InvalidArgument(
            f"parameter {name} is of type {array.dtype.name}; accepted are {', '.join(ACCEPTED)}"
            + (": convert it with .astype(jnp.float32)" if array.dtype.name == "float64" else "")
        )
    floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return of_wire(program.parameter(name, array, trainable and floating))


def _state(program: Program, name: str, leaf: Any) -> Any3:
    dtype = str(leaf.dtype) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype.name
    if dtype.startswith("key<"):
        return Opaque("key", ("state", name), np.shape(leaf), dtype)
    if dtype == "uint32":  # raw keys have two elements; counters of random streams none
        return Opaque("counter" if not np.shape(leaf) else "raw", ("state", name), np.shape(leaf), dtype)
    return _parameter(program, name, leaf, trainable=False)


def _name_outputs(context: Context, outputs: Any, shapes: Any, arrays: bool) -> list[str]:
    """The loss, and the scalars of aux, with `arrays` its arrays, too; returns the names of its leaves."""
    loss, _, aux = outputs
    aval = shapes[0]
    if not hasattr(aval, "shape") or tuple(aval.shape) not in ((), (1,)):
        raise InvalidArgument(f"the loss has shape {getattr(aval, 'shape', aval)}; expected a scalar")
    if str(aval.dtype) != "float32":
        raise InvalidArgument(f"the loss is of type {aval.dtype}; expected float32")
    program = context.program
    program.outputs["loss"] = context.reshape(wire_of(context, loss), ())
    names = []
    for path, value in jax.tree_util.tree_flatten_with_path(aux)[0]:
        label = leaf_name(path) or "aux"
        names.append("")
        if arrays and isinstance(value, Value) and value.shape:
            names[-1] = _unique(label, list(program.outputs))
            program.outputs[names[-1]] = context.dense(value)
            continue
        scalar = isinstance(value, Value) and value.shape == () and value.dtype in ("float32", "int32", "bool")
        if not scalar:
            context.note(f"aux {label} is no number and is not reported")
            continue
        names[-1] = _unique(label, list(program.outputs))
        program.outputs[names[-1]] = context.cast(context.dense(value), "float32")
    return names


def _updates(context: Context, new: Any, old: list[Any3], names: list[str]) -> list[tuple[str, Wire, Wire]]:
    """State that loss_fn changes: name, parameter and new value."""
    leaves = jax.tree_util.tree_leaves(new, is_leaf=lambda x: isinstance(x, (Value, Opaque)))
    if len(leaves) != len(old):
        raise InvalidArgument(f"loss_fn returns a state of {len(leaves)} arrays; the one it gets has {len(old)}")
    updates = []
    for label, before, after in zip(names, old, leaves, strict=True):
        if isinstance(before, Opaque):
            context.note(f"state {label} counts random draws: the daemon's numbers follow from the job's seed instead")
            continue
        assert isinstance(before, Value)
        assert before.wire is not None
        if isinstance(after, Value) and after.wire is before.wire and after.dims == before.dims:
            continue
        try:
            wire = wire_of(context, after)
        except Refused as refusal:
            raise InvalidArgument(f"state {label}: {refusal}") from refusal
        updates.append((label, before.wire, wire))
        context.program.outputs[f"state:{label}"] = wire
    return updates


def _refuse_missing(program: Program) -> None:
    """Raises UnsupportedOperators if a live node stands for a primitive without a counterpart."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in program.nodes:
        if node.op == MISSING:
            found.setdefault(node.note, []).append(node.source)
    if found:
        raise UnsupportedOperators(
            "JAX",
            [
                Unsupported(primitive, len(sources), sources[0], reason)
                for (primitive, reason), sources in sorted(found.items())
            ],
        )
