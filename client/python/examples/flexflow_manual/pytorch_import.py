"""Chapter 7.2.2 of FlexFlow's manual: the file of pytorch_export.py is trained on CIFAR-10.

The manual leaves the first lines and the data out; they are filled in. It calls the model ffmodel and ffmmodel. SAMPLES
may be set in the environment.
"""

import os

from espalier.core import DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer
from espalier.keras.flexflow.datasets import cifar10
from espalier.torch.model import PyTorchModel

ffconfig = FFConfig()
ffmodel = ffmmodel = FFModel(ffconfig)

# create input tensors
dims_input = [ffconfig.get_batch_size(), 3, 32, 32]
input_tensor = ffmmodel.create_tensor(dims_input, DataType.DT_FLOAT)

# create a flexflow model from the file
torch_model = PyTorchModel("filename")
output_tensor = torch_model.apply(ffmodel, [input_tensor])

# use the Python API to train the model
ffoptimizer = SGDOptimizer(ffmodel, 0.01)
ffmodel.set_sgd_optimizer(ffoptimizer)
ffmodel.compile(
    loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
    metrics=[
        MetricsType.METRICS_ACCURACY,
        MetricsType.METRICS_SPARSE_CATEGORICAL_CROSSENTROPY,
    ],
)

(x_train, y_train), _ = cifar10.load_data(int(os.environ.get("SAMPLES", "10000")))
dataloader_input = ffmodel.create_data_loader(input_tensor, x_train.astype("float32") / 255)
dataloader_label = ffmodel.create_data_loader(ffmodel.label_tensor, y_train.astype("int32"))
ffmodel.init_layers()
epochs = ffconfig.epochs

ffmodel.fit(x=dataloader_input, y=dataloader_label, epochs=epochs)
print(ffmodel.get_perf_metrics())
