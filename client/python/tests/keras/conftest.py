"""The real Keras on jax and the CPU."""

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).absolute().parent))
