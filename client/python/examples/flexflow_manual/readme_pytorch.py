"""FlexFlow README's "PyTorch Support": the file of pytorch_export.py, by the short forms of compile and fit.

The README leaves the first lines out; they are filled in. SAMPLES may be set in the environment.
"""

import os

from espalier.core import DataType, FFConfig, FFModel
from espalier.keras.flexflow.datasets import cifar10
from espalier.torch.model import PyTorchModel

ffconfig = FFConfig()
ffmodel = FFModel(ffconfig)
input_tensor = ffmodel.create_tensor([ffconfig.batch_size, 3, 32, 32], DataType.DT_FLOAT)


def top_level_task():
    torch_model = PyTorchModel("filename")
    output_tensor = torch_model.apply(ffmodel, input_tensor)  # noqa: F841
    ## Model compilation
    ffmodel.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    ## Model training
    (x_train, y_train), _ = cifar10.load_data(int(os.environ.get("SAMPLES", "10000")))
    ffmodel.fit(x_train / 255, y_train, epochs=30)


if __name__ == "__main__":
    top_level_task()
    print(ffmodel.get_perf_metrics())
