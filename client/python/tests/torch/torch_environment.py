"""The environment of the tests against PyTorch and its libraries. `deploy/install.sh --tests` runs this file.

Installed without what the packages ask for, of which requirements.txt has what the tests need: PyTorch asks for 3 GB of
CUDA's libraries. See cuda_stubs.py.
"""

import glob
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "..", "tests", "conformance"))
from environment import Environment  # noqa: E402


class TorchEnvironment(Environment):
    def make(self, folder):
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", folder], check=True)
        pip = [os.path.join(folder, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", self.requirements], check=True)
        (libraries,) = glob.glob(os.path.join(folder, "lib", "python3*", "site-packages", "torch", "lib"))
        subprocess.run([sys.executable, os.path.join(HERE, "cuda_stubs.py"), libraries], check=True)
        shutil.copyfile(self.requirements, os.path.join(folder, "requirements.txt"))


ENVIRONMENT = TorchEnvironment("torch-environment", os.path.join(HERE, "requirements.txt"))

if __name__ == "__main__":
    ENVIRONMENT.install()
