"""TFLMS's Keras_ResNet50.py: ResNet-50 on random images, as large as one likes, with LMS's options on the command line.

python resnet50_lms.py --image_size 224 --swapout_threshold 4    # with ESPALIER_COORDINATOR, or `espalier up`
Larger images need more memory; where the step does not fit a worker's, tensors are swapped and recomputed. --debug
prints what was done.
"""

import argparse

import numpy as np

from espalier.keras.applications.resnet50 import ResNet50
from espalier.keras.callbacks import LMS

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--steps", type=int, default=10, help="steps of an epoch")
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--image_size", type=int, default=224)
parser.add_argument("--num_classes", type=int, default=15)
parser.add_argument("--swapout_threshold", type=int, default=-1)
parser.add_argument("--swapin_ahead", type=int, default=-1)
parser.add_argument("--swapin_groupby", type=int, default=-1)
parser.add_argument("--sync_mode", type=int, default=0)
parser.add_argument("--serialization_by_size", type=float, default=0)
parser.add_argument("--debug", action="store_true")
args = parser.parse_args()


def random_images():
    rng = np.random.default_rng(0)
    while True:
        x = rng.random((args.batch_size, args.image_size, args.image_size, 3), dtype=np.float32)
        yield x, rng.integers(0, args.num_classes, args.batch_size)


model = ResNet50(weights=None, input_shape=(args.image_size, args.image_size, 3), classes=args.num_classes)
model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy")

lms_callback = LMS(
    swapout_threshold=args.swapout_threshold,
    swapin_ahead=args.swapin_ahead,
    swapin_groupby=args.swapin_groupby,
    sync_mode=args.sync_mode,
    serialization_by_size=args.serialization_by_size,
    debug=args.debug,
)
model.fit_generator(generator=random_images(), steps_per_epoch=args.steps, epochs=args.epochs, callbacks=[lms_callback])
