"""JAX on the CPU, which spends the time of these tests in compiling: as little of that as possible."""

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
sys.path.insert(0, str(Path(__file__).absolute().parent))
