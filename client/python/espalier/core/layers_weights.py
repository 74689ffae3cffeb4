"""Layers with parameters, and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from espalier.core.builder import AttributeDict, Builder, Layer, activation_name, axis_of
from espalier.core.enums import ActiMode, AggrMode, DataType, OpType, PoolType, RegularizerMode, dtype_of
from espalier.core.initializers import Initializer
from espalier.core.layer import Op, Parameter, Tensor
from espalier.graph import ones, zeros

_POOLS = {PoolType.POOL_MAX: "max", PoolType.POOL_AVG: "average"}


def _windows(
    layer: Layer, input: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> list[int]:
    """Sizes of a convolution's or pooling's result in height and width."""
    if input.num_dims != 4:
        raise layer.error(f"its input has dims {list(input.dims)}; four are needed: batch, channels, height, width")
    layer.check_batch(input)
    sizes = []
    for what, have, k, s, p in zip(("height", "width"), input.dims[2:], kernel, stride, pad, strict=True):
        if k < 1 or s < 1 or p < 0:
            raise layer.error(f"kernel {k}, stride {s} and padding {p} of the {what}: sizes above 0, padding not below")
        if have + 2 * p < k:
            raise layer.error(
                f"its kernel of {what} {k} is larger than the input, {have} and {p} of padding at each end"
            )
        sizes.append((have + 2 * p - k) // s + 1)
    return sizes


def _pads(pad: Sequence[int]) -> list[int]:
    return [*pad, *pad]


class WeightLayers(Builder):
    """Layers with parameters."""

    _penalties: dict[str, tuple[float, float]]  # parameter -> factors of sum |w| and sum w^2

    def conv2d(
        self,
        input: Tensor,
        out_channels: int,
        kernel_h: int,
        kernel_w: int,
        stride_h: int,
        stride_w: int,
        padding_h: int,
        padding_w: int,
        activation: ActiMode = ActiMode.AC_MODE_NONE,
        groups: int = 1,
        use_bias: bool = True,
        shared_op: Op | Tensor | None = None,
        kernel_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        name: str | None = None,
    ) -> Tensor:
        """[N, C, H, W] to [N, out_channels, H', W'], H' = (H + 2 padding_h - kernel_h) // stride_h + 1.

        Parameters: kernel [out_channels, C / groups, kernel_h, kernel_w], bias [out_channels].
        """
        layer = self._begin(OpType.CONV2D, "conv2d", name, [input], shared_op)
        groups = int(groups)
        stride, pad = (stride_h, stride_w), (padding_h, padding_w)
        sizes = _windows(layer, input, (kernel_h, kernel_w), stride, pad)
        channels = input.dims[1]
        if groups < 1 or channels % groups or out_channels % groups or out_channels < 1:
            raise layer.error(f"{channels} channels to {out_channels} cannot be in {groups} groups")
        shape = [out_channels, channels // groups, kernel_h, kernel_w]
        kernel = layer.parameter("kernel", shape, kernel_initializer)
        bias = layer.bias(out_channels, bias_initializer) if use_bias else None
        attributes: AttributeDict = {
            "strides": list(stride),
            "pads": _pads(pad),
            "groups": groups,
            "activation": activation_name(activation, layer),
        }
        dims = [input.dims[0], out_channels, *sizes]
        return self._end(layer, layer.emit("conv2d", [input, kernel, bias], attributes, dims=dims))

    def pool2d(
        self,
        input: Tensor,
        kernel_h: int,
        kernel_w: int,
        stride_h: int,
        stride_w: int,
        padding_h: int,
        padding_w: int,
        pool_type: PoolType = PoolType.POOL_MAX,
        activation: ActiMode = ActiMode.AC_MODE_NONE,
        name: str | None = None,
    ) -> Tensor:
        """Maxima or means over windows of [N, C, H, W]; means are taken without the padding."""
        layer = self._begin(OpType.POOL2D, "pool2d", name, [input])
        if pool_type not in _POOLS:
            raise layer.error(f"pool_type {pool_type!r}; accepted: POOL_MAX, POOL_AVG")
        kernel, stride, pad = (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w)
        sizes = _windows(layer, input, kernel, stride, pad)
        attributes: AttributeDict = {
            "kernel": list(kernel),
            "strides": list(stride),
            "pads": _pads(pad),
            "kind": _POOLS[pool_type],
        }
        pooled = layer.emit("pool2d", [input], attributes, dims=[*input.dims[:2], *sizes])
        return self._end(layer, layer.activate(pooled, activation))

    def dense(
        self,
        input: Tensor,
        out_dim: int,
        activation: ActiMode = ActiMode.AC_MODE_NONE,
        use_bias: bool = True,
        datatype: DataType = DataType.DT_NONE,
        shared_op: Op | Tensor | None = None,
        kernel_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        kernel_regularizer: Any = None,
        name: str | None = None,
    ) -> Tensor:
        """activation(input kernel^T + bias): [..., C] to [..., out_dim].

        Parameters: kernel [out_dim, C], bias [out_dim]. kernel_regularizer: of espalier.keras.regularizers, or with
        FlexFlow's attributes `type` (a RegularizerMode) and `_lambda`.
        """
        layer = self._begin(OpType.LINEAR, "dense", name, [input], shared_op)
        if dtype_of(datatype, f"layer {layer.op.name}") != "float32":
            raise layer.error(f"datatype {datatype.name}; accepted: DT_FLOAT")
        if input.num_dims < 2 or out_dim < 1:
            raise layer.error(f"from dims {list(input.dims)} to {out_dim} features; two dimensions or more are needed")
        layer.check_batch(input, [input.num_dims - 1])
        kernel = layer.parameter("kernel", [out_dim, input.dims[-1]], kernel_initializer)
        bias = layer.bias(out_dim, bias_initializer) if use_bias else None
        self._penalize(layer, kernel, kernel_regularizer)
        attributes = {"activation": activation_name(activation, layer)}
        dims = [*input.dims[:-1], out_dim]
        made = layer.emit("linear", [input, kernel, bias], attributes, dims=dims, batch_dim=input.batch_dim)
        return self._end(layer, made)

    def _penalize(self, layer: Layer, kernel: Parameter, regularizer: Any) -> None:
        if regularizer is None:
            return
        if hasattr(regularizer, "l1") and hasattr(regularizer, "l2"):
            factors = (float(regularizer.l1), float(regularizer.l2))
        elif hasattr(regularizer, "type") and hasattr(regularizer, "_lambda"):
            factor = float(regularizer._lambda)
            by_mode = {
                RegularizerMode.REG_MODE_NONE: (0.0, 0.0),
                RegularizerMode.REG_MODE_L1: (factor, 0.0),
                RegularizerMode.REG_MODE_L2: (0.0, factor),
            }
            if regularizer.type not in by_mode:
                raise layer.error(f"kernel_regularizer of type {regularizer.type!r}; accepted is a RegularizerMode")
            factors = by_mode[regularizer.type]
        else:
            raise layer.error(f"kernel_regularizer {regularizer!r} has neither l1 and l2 nor type and _lambda")
        if any(factors):
            self._penalties[kernel.name] = factors

    def embedding(
        self,
        input: Tensor,
        num_embeddings: int,
        embedding_dim: int,
        aggr: AggrMode,
        dtype: DataType = DataType.DT_FLOAT,
        shared_op: Op | Tensor | None = None,
        kernel_initializer: Initializer | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Rows of a table by ids: [..., L] to [..., L, embedding_dim], or summed or averaged over L.

        Parameter: kernel [num_embeddings, embedding_dim].
        """
        layer = self._begin(OpType.EMBEDDING, "embedding", name, [input], shared_op)
        if input.dtype not in ("int32", "int64"):
            raise layer.error(f"its input has {input.data_type.name}; ids are DT_INT32 or DT_INT64")
        if dtype_of(dtype, f"layer {layer.op.name}") != "float32":
            raise layer.error(f"dtype {dtype.name}; accepted: DT_FLOAT")
        kernel = layer.parameter("kernel", [num_embeddings, embedding_dim], kernel_initializer)
        if aggr == AggrMode.AGGR_MODE_NONE:
            dims = [*input.dims, embedding_dim]
            made = layer.emit("embedding", [input, kernel], dims=dims, batch_dim=input.batch_dim)
            return self._end(layer, made)
        modes = {AggrMode.AGGR_MODE_SUM: "sum", AggrMode.AGGR_MODE_AVG: "average"}
        if aggr not in modes:
            raise layer.error(f"aggr {aggr!r}; accepted: AGGR_MODE_NONE, AGGR_MODE_SUM, AGGR_MODE_AVG")
        if input.num_dims < 2:
            raise layer.error(f"{aggr.name} of dims {list(input.dims)}: there is no dimension of ids to aggregate")
        layer.check_batch(input, [input.num_dims - 1])
        dims = [*input.dims[:-1], embedding_dim]
        made = layer.emit("embedding_bag", [input, kernel], {"mode": modes[aggr]}, dims=dims, batch_dim=input.batch_dim)
        return self._end(layer, made)

    def batch_norm(self, input: Tensor, relu: bool = True, name: str | None = None) -> Tensor:
        """Normalizes each channel of [N, C, ...] by the batch's mean and variance; then ReLU if `relu`.

        Parameters: scale, bias, running_mean, running_var, each [C]. Evaluation takes the running ones.
        """
        layer = self._begin(OpType.BATCH_NORM, "batch_norm", name, [input])
        if input.num_dims < 2:
            raise layer.error(f"its input has dims {list(input.dims)}; two or more are needed: batch, channels, ...")
        layer.check_batch(input)
        channels = input.dims[1]
        scale = layer.parameter("scale", [channels], default=ones())
        bias = layer.bias(channels)
        mean = layer.parameter("running_mean", [channels], default=zeros(), trainable=False)
        variance = layer.parameter("running_var", [channels], default=ones(), trainable=False)
        stats = layer.emit("batch_norm_stats", [input], dims=[2, channels], batch_dim=None)
        attributes = {"activation": "relu" if relu else "none"}
        made = layer.emit("batch_norm", [input, scale, bias, mean, variance, stats], attributes, dims=input.dims)
        return self._end(layer, made)

    def layer_norm(
        self,
        input: Tensor,
        axes: Sequence[int],
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        name: str | None = None,
    ) -> Tensor:
        """Normalizes over the last dimensions, which `axes` names. Parameters: scale and bias, of these dimensions."""
        layer = self._begin(OpType.LAYER_NORM, "layer_norm", name, [input])
        rank = input.num_dims
        found = sorted({axis_of(layer, axis, rank) for axis in axes})
        if found != list(range(rank - len(found), rank)) or not found or 0 in found:
            raise layer.error(f"axes {list(axes)} of {rank} dimensions; accepted are the last ones, without the batch")
        layer.check_batch(input, found)
        shape = list(input.dims[found[0] :])
        flat = input
        if len(shape) > 1:
            flat = layer.reshaped(input, [*input.dims[: found[0]], -1])
        operands: list[Tensor | None] = [flat]
        if elementwise_affine:
            size = flat.dims[-1]
            operands += [layer.parameter("scale", [size], default=ones()), layer.bias(size)]
        made = layer.emit("layer_norm", operands, {"epsilon": float(eps)}, dims=flat.dims, batch_dim=flat.batch_dim)
        return self._end(layer, layer.reshaped(made, input.dims) if len(shape) > 1 else made)

    def multihead_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim: int,
        num_heads: int,
        kdim: int = 0,
        vdim: int = 0,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kernel_initializer: Initializer | None = None,
        name: str | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Multi-head attention of query [N, S, E], key [N, T, K] and value [N, T, V]: [N, S, embed_dim].

        kdim and vdim: the features K and V, as in PyTorch, or embed_dim / num_heads, as FlexFlow's examples give them,
        or 0. Parameters: query, key and value [embed_dim, E, K or V], out [embed_dim, embed_dim], with `bias` one of
        each, named bias_query and so on, with add_bias_kv bias_k and bias_v [embed_dim].
        """
        layer = self._begin(OpType.MULTIHEAD_ATTENTION, "multihead_attention", name, [query, key, value])
        for what, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.num_dims != 3:
                raise layer.error(f"{what} has dims {list(tensor.dims)}; three are needed: batch, sequence, features")
            layer.check_batch(tensor)
        if key.dims[1] != value.dims[1]:
            raise layer.error(f"key has {key.dims[1]} rows, value {value.dims[1]}")
        if num_heads < 1 or embed_dim % num_heads:
            raise layer.error(f"embed_dim {embed_dim} is no multiple of num_heads {num_heads}")
        for what, given, features in (("kdim", kdim, key.dims[2]), ("vdim", vdim, value.dims[2])):
            if given not in (0, features, embed_dim // num_heads):
                raise layer.error(
                    f"{what} {given}; accepted: the features of the input, {features}, embed_dim / num_heads, "
                    f"{embed_dim // num_heads}, or 0"
                )
        weights: list[Tensor | None] = [
            layer.parameter(kind, [embed_dim, size], kernel_initializer)
            for kind, size in (
                ("query", query.dims[2]),
                ("key", key.dims[2]),
                ("value", value.dims[2]),
                ("out", embed_dim),
            )
        ]
        biases: list[Tensor | None] = [
            layer.parameter(f"bias_{kind}", [embed_dim], default=zeros()) if bias else None
            for kind in ("query", "key", "value", "out")
        ]
        extra: list[Tensor | None] = [
            layer.parameter(kind, [embed_dim], kernel_initializer) if add_bias_kv else None
            for kind in ("bias_k", "bias_v")
        ]
        attributes = {
            "heads": num_heads,
            "rate": float(dropout),
            "causal": bool(causal),
            "add_zero_attn": bool(add_zero_attn),
        }
        operands: list[Tensor | None] = [query, key, value, *weights, *biases, *extra, None]
        while operands[-1] is None:
            operands.pop()
        made = layer.emit("multi_head_attention", operands, attributes, dims=[*query.dims[:2], embed_dim])
        return self._end(layer, made)
