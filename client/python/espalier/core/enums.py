"""FlexFlow's enums (`flexflow.type`), with its names and numbers."""

from __future__ import annotations

from enum import Enum

from espalier.errors import InvalidArgument


class ActiMode(Enum):
    """Activations that a layer applies to its result."""

    AC_MODE_NONE = 10
    AC_MODE_RELU = 11
    AC_MODE_SIGMOID = 12
    AC_MODE_TANH = 13
    AC_MODE_GELU = 14


class RegularizerMode(Enum):
    """Penalties on weights."""

    REG_MODE_NONE = 17
    REG_MODE_L1 = 18
    REG_MODE_L2 = 19


class AggrMode(Enum):
    """What `embedding` makes of several ids."""

    AGGR_MODE_NONE = 20
    AGGR_MODE_SUM = 21
    AGGR_MODE_AVG = 22


class PoolType(Enum):
    """Kinds of `pool2d`."""

    POOL_MAX = 30
    POOL_AVG = 31


class DataType(Enum):
    """Element types. Tensors have DT_FLOAT, DT_INT32, DT_INT64 or DT_BOOLEAN; others are refused by name."""

    DT_BOOLEAN = 40
    DT_INT32 = 41
    DT_INT64 = 42
    DT_HALF = 43
    DT_FLOAT = 44
    DT_DOUBLE = 45
    DT_INT4 = 46
    DT_INT8 = 47
    DT_NONE = 49


class LossType(Enum):
    """Losses of `compile`."""

    LOSS_CATEGORICAL_CROSSENTROPY = 50
    LOSS_SPARSE_CATEGORICAL_CROSSENTROPY = 51
    LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE = 52
    LOSS_MEAN_SQUARED_ERROR_SUM_REDUCE = 53
    LOSS_IDENTITY = 54


class CompMode(Enum):
    """What a model is compiled for. The manual's names COMP_MODE_... are the same."""

    TRAINING = 70
    INFERENCE = 71
    COMP_MODE_TRAINING = 70
    COMP_MODE_INFERENCE = 71


class ParameterSyncType(Enum):
    """How FlexFlow combines gradients; accepted, the plan decides."""

    NONE = 80
    PS = 81
    NCCL = 82


class MetricsType(Enum):
    """Metrics of `compile`."""

    METRICS_ACCURACY = 1001
    METRICS_CATEGORICAL_CROSSENTROPY = 1002
    METRICS_SPARSE_CATEGORICAL_CROSSENTROPY = 1004
    METRICS_MEAN_SQUARED_ERROR = 1008
    METRICS_ROOT_MEAN_SQUARED_ERROR = 1016
    METRICS_MEAN_ABSOLUTE_ERROR = 1032


class OpType(Enum):
    """Kinds of layers."""

    CONV2D = 2011
    EMBEDDING = 2012
    POOL2D = 2013
    LINEAR = 2014
    SOFTMAX = 2015
    CONCAT = 2016
    FLAT = 2017
    BATCH_NORM = 2021
    RELU = 2022
    SIGMOID = 2023
    TANH = 2024
    ELU = 2025
    DROPOUT = 2026
    BATCH_MATMUL = 2027
    SPLIT = 2028
    RESHAPE = 2029
    TRANSPOSE = 2030
    REVERSE = 2031
    EXP = 2040
    ADD = 2041
    SUBTRACT = 2042
    MULTIPLY = 2043
    DIVIDE = 2044
    POW = 2045
    MEAN = 2046
    RSQRT = 2047
    SIN = 2048
    COS = 2049
    INPUT = 2050
    OUTPUT = 2051
    REDUCE_SUM = 2052
    MAX = 2053
    MIN = 2054
    MULTIHEAD_ATTENTION = 2060
    LAYER_NORM = 2082
    IDENTITY = 2084
    GELU = 2085
    SCALAR_MULTIPLY = 2087
    SCALAR_ADD = 2089
    SCALAR_SUB = 2090
    SCALAR_TRUEDIV = 2091
    TO = 2102
    GATHER = 2106
    TOPK = 2110
    GROUP_BY = 2111
    AGGREGATE = 2112
    AGGREGATE_SPEC = 2113
    MODULE = 2120  # a model of PyTorch or ONNX


_NAMES = {
    DataType.DT_FLOAT: "float32",
    DataType.DT_NONE: "float32",
    DataType.DT_INT32: "int32",
    DataType.DT_INT64: "int64",
    DataType.DT_BOOLEAN: "bool",
}
_REFUSED = {
    DataType.DT_DOUBLE: "double precision is not computed: use DT_FLOAT",
    DataType.DT_HALF: 'use DT_FLOAT, and FFConfig.precision = "f16" or "bf16" to compute in 16 bits',
}


def dtype_of(data_type: DataType, what: str) -> str:
    """Name of an element type of the daemon. InvalidArgument for those that tensors cannot have."""
    if not isinstance(data_type, DataType):
        raise InvalidArgument(f"{what}: {data_type!r} is no DataType; give one such as DataType.DT_FLOAT")
    if data_type not in _NAMES:
        why = _REFUSED.get(data_type, "tensors have DT_FLOAT, DT_INT32, DT_INT64 or DT_BOOLEAN")
        raise InvalidArgument(f"{what}: {data_type.name}: {why}")
    return _NAMES[data_type]


def data_type_of(dtype: str) -> DataType:
    """The DataType of an element type's name."""
    for data_type, name in _NAMES.items():
        if name == dtype:
            return data_type
    raise InvalidArgument(f"element type {dtype} has no DataType")
