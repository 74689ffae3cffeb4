"""Makes the modules of this folder importable, and PyTorch use one thread as each worker does."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).absolute().parent))
torch.set_num_threads(1)
