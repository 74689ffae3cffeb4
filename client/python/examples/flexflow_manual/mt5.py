"""Chapter 8.1.2 of FlexFlow's manual: mT5 of transformers is trained to translate.

The manual gives the steps; what lies between them is filled in. from_pretrained looks for the folder google/mt5-small
first, then in the Hub. The folder that NUMPY_DIR names (data/numpy) has token ids as .npy files: train_source_ids,
train_source_mask, train_y_ids, which the decoder reads, and train_lm_labels, what it shall say, -100 where nothing.

    python mt5.py -b 8 -e 1
"""

import os

import numpy as np
from transformers import MT5ForConditionalGeneration

from espalier.core import DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer
from espalier.torch.model import PyTorchModel

NUMPY_DIR = os.environ.get("NUMPY_DIR", os.path.join("data", "numpy"))


def top_level_task():
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    model = MT5ForConditionalGeneration.from_pretrained("google/mt5-small")

    ids, mask, y_ids, lm_labels = (
        np.load(os.path.join(NUMPY_DIR, f"train_{name}.npy"))
        for name in ("source_ids", "source_mask", "y_ids", "lm_labels")
    )
    batch_size = ffconfig.batch_size
    seq_length = (ids.shape[1], y_ids.shape[1])
    input_tensors = [
        ffmodel.create_tensor((batch_size, ids.shape[1]), DataType.DT_INT64),
        ffmodel.create_tensor((batch_size, mask.shape[1]), DataType.DT_INT64),
        ffmodel.create_tensor((batch_size, y_ids.shape[1]), DataType.DT_INT64),
    ]

    hf_model = PyTorchModel(
        model, is_hf_model=True, batch_size=ffconfig.batch_size,
        seq_length=seq_length,
    )  # fmt: skip
    output_tensors = hf_model.to_ff(ffmodel, input_tensors)
    print(output_tensors[0])

    ffoptimizer = SGDOptimizer(ffmodel, lr=0.01)
    ffmodel.compile(
        optimizer=ffoptimizer,
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[
            MetricsType.METRICS_ACCURACY,
            MetricsType.METRICS_SPARSE_CATEGORICAL_CROSSENTROPY,
        ],
    )

    input_ids_dl = ffmodel.create_data_loader(input_tensors[0], ids)
    attention_mask_dl = ffmodel.create_data_loader(input_tensors[1], mask)
    decoder_ids_dl = ffmodel.create_data_loader(input_tensors[2], y_ids)
    labels_dl = ffmodel.create_data_loader(ffmodel.label_tensor, lm_labels.astype("int32"))

    ffmodel.init_layers()

    epochs = ffconfig.epochs
    ffmodel.fit(
        x=[input_ids_dl, attention_mask_dl, decoder_ids_dl],
        y=labels_dl, batch_size=batch_size, epochs=epochs,
    )  # fmt: skip
    print(ffmodel.get_perf_metrics())


if __name__ == "__main__":
    top_level_task()
