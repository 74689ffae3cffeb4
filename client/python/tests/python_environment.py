"""The virtual environments of the Python package's tests.

NEWEST has the newest releases of what the package needs, and wheels from which it is installed without network. OLDEST
has Debian's grpcio, protobuf and NumPy, the oldest that pyproject.toml states. `deploy/install.sh --tests` makes them
(it runs this file).
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "tests", "conformance"))
from environment import Environment  # noqa: E402

NEEDED = ("grpcio", "numpy", "protobuf", "setuptools", "typing_extensions")


class WithWheels(Environment):
    def make(self, folder):
        super().make(folder)
        done = os.path.join(folder, "requirements.txt")
        with open(done) as file:
            wheels = [line.strip() for line in file if line.split("==")[0] in NEEDED]
        try:
            pip = [os.path.join(folder, "bin", "pip"), "download", "--quiet", "--disable-pip-version-check"]
            to = ["--no-deps", "--only-binary=:all:", "-d", os.path.join(folder, "wheels")]
            subprocess.run([*pip, *to, *wheels], check=True)
        except BaseException:
            os.remove(done)
            raise


class OverDebian(Environment):
    def make(self, folder):
        super().make(folder)
        settings = os.path.join(folder, "pyvenv.cfg")
        with open(settings) as file:
            text = file.read()
        with open(settings, "w") as file:
            file.write(text.replace("include-system-site-packages = false", "include-system-site-packages = true"))


NEWEST = WithWheels("python-environment", os.path.join(HERE, "requirements.txt"))
OLDEST = OverDebian("python-oldest-environment", os.path.join(HERE, "oldest_requirements.txt"))

if __name__ == "__main__":
    NEWEST.install()
    OLDEST.install()
