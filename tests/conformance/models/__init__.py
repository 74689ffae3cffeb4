"""Model families as PyTorch modules, each a file with MODELS, a list of Model.

Architectures are the published ones: `published` builds the full-size model, whose number of parameters
models_test.py compares with the literature's. What is trained is as deep as that, with fewer channels and
smaller inputs. Dropout stands in every model where its authors put it, at rate 0: the random masks of two
frameworks cannot agree.
"""
import dataclasses
import importlib
import pkgutil
from typing import Callable, Dict, Optional, Tuple

import torch
from torch import nn

CROSS_ENTROPY = "sparse_categorical_crossentropy"
SQUARES = "mean_squared_error"
BINARY = "binary_crossentropy"  # of logits


@dataclasses.dataclass
class Model:
    name: str
    make: Callable[[], nn.Module]
    # Number of examples -> graph inputs by name, in the order of forward's arguments.
    inputs: Callable[[int], Dict[str, torch.Tensor]]
    labels: Callable[[int], torch.Tensor]
    loss: str = CROSS_ENTROPY
    batch: int = 4
    learning_rate: float = 0.01
    opset: int = 15
    dynamic: bool = True  # the export leaves the batch open
    seed: int = 1
    # Largest errors accepted: see models_test.py. Anything but the usual ones needs a reason beside it.
    outputs: float = 2e-5
    gradients: float = 1e-4
    losses: float = 1e-4
    parameters: float = 1e-4
    published: Optional[Tuple[Callable[[], nn.Module], int]] = None


# At most so many operators are left after fusion, with the loss.
FUSED = {
    "AlexNet": 14,
    "BERT": 172,
    "DenseNet-121": 428,
    "DLRM": 31,
    "GPT-2": 162,
    "Inception-v3": 319,
    "LSTM tagger": 106,
    "Mixture of experts": 75,
    "MLP": 8,
    "MobileNetV2": 170,
    "mT5-small": 429,
    "ResNet-50": 164,
    "ResNeXt-50": 164,
    "Transformer": 98,
    "U-Net": 69,
    "VGG-11": 19,
    "ViT": 217,
}


# Where many batch norms follow each other without a shortcut past them: what a norm takes away again has a gradient that
# is a small difference of large sums. PyTorch's float32 is 1e-4 to 5e-4 off some biases'.
DEEP_NORMS = dict(gradients=1e-3)


def images(channels, size):
    return lambda n: {"x": torch.randn(n, channels, size, size)}


def tokens(vocabulary, length, name="tokens"):
    return lambda n: {name: torch.randint(0, vocabulary, (n, length))}


def classes(count, *shape):
    return lambda n: torch.randint(0, count, (n, *shape))


def calm(module):
    """Starts deep convolutional networks where float32 can follow them.

    Weights keep the size of activations (He et al. 2015). Batch norms start with a bias of 2.5 standard deviations:
    with 0, half of all activations are behind ReLU's kink and the gradient grows by half with each layer (Yang et al.
    2019), so that after fifty layers little but the rounding of the first is left of it; and of a million activations
    some lie so near the kink that float32 takes them to the other side, which a gradient shows in its second digit.
    """
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            if m.bias is not None:
                nn.init.zeros_(m.bias)
        if isinstance(m, nn.BatchNorm2d):
            nn.init.constant_(m.bias, 2.5)
    return module


def load():
    """All models, by the names of their files."""
    models = []
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        models += importlib.import_module(f"{__name__}.{found.name}").MODELS
    return models
