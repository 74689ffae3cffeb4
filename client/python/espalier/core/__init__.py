"""FlexFlow's `flexflow.core` on the daemon.

from espalier.core import *

ffconfig = FFConfig()
ffmodel = FFModel(ffconfig)
input = ffmodel.create_tensor([ffconfig.batch_size, 784], DataType.DT_FLOAT)
t = ffmodel.dense(input, 512, ActiMode.AC_MODE_RELU)
t = ffmodel.softmax(ffmodel.dense(t, 10))
ffmodel.compile(
    optimizer=SGDOptimizer(ffmodel, 0.01),
    loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
    metrics=[MetricsType.METRICS_ACCURACY],
)
x_loader = ffmodel.create_data_loader(input, x)
y_loader = ffmodel.create_data_loader(ffmodel.label_tensor, y)
ffmodel.init_layers()
ffmodel.fit(x=x_loader, y=y_loader, epochs=ffconfig.epochs)

Names, arguments and their order are FlexFlow's (docs/guide/flexflow.md).
"""

from espalier.core.config import FFConfig, flexflow_python_binding
from espalier.core.data_loader import SingleDataLoader
from espalier.core.enums import (
    ActiMode,
    AggrMode,
    CompMode,
    DataType,
    LossType,
    MetricsType,
    OpType,
    ParameterSyncType,
    PoolType,
    RegularizerMode,
)
from espalier.core.initializers import (
    ConstantInitializer,
    GlorotUniformInitializer,
    Initializer,
    NormInitializer,
    UniformInitializer,
    ZeroInitializer,
)
from espalier.core.layer import Op, Parameter, Tensor
from espalier.core.metrics import PerfMetrics
from espalier.core.model import FFModel
from espalier.core.net_config import DLRMConfig, NetConfig
from espalier.core.optimizers import AdamOptimizer, Optimizer, SGDOptimizer

__all__ = [
    "ActiMode",
    "AdamOptimizer",
    "AggrMode",
    "CompMode",
    "ConstantInitializer",
    "DLRMConfig",
    "DataType",
    "FFConfig",
    "FFModel",
    "GlorotUniformInitializer",
    "Initializer",
    "LossType",
    "MetricsType",
    "NetConfig",
    "NormInitializer",
    "Op",
    "OpType",
    "Optimizer",
    "Parameter",
    "ParameterSyncType",
    "PerfMetrics",
    "PoolType",
    "RegularizerMode",
    "SGDOptimizer",
    "SingleDataLoader",
    "Tensor",
    "UniformInitializer",
    "ZeroInitializer",
    "flexflow_python_binding",
]
