"""The virtual environment with the ONNX project's package, which carries its backend node tests, and ONNX Runtime.

`deploy/install.sh --tests` makes it (it runs this file). A test that does not find it makes its own.
"""
import os
import pwd
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
REQUIREMENTS = os.path.join(HERE, "onnx_requirements.txt")


def installed(folder):
    try:
        with open(os.path.join(folder, "requirements.txt")) as have, open(REQUIREMENTS) as want:
            return have.read() == want.read()
    except FileNotFoundError:
        return False


def make(folder):
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", folder], check=True)
    subprocess.run([os.path.join(folder, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check",
                    "-r", REQUIREMENTS], check=True)
    with open(REQUIREMENTS) as want, open(os.path.join(folder, "requirements.txt"), "w") as have:
        have.write(want.read())


def home():
    # Tests run without $HOME.
    return os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "espalier-onnx-environment")


def find():
    """The folder of an environment that has what onnx_requirements.txt names."""
    if installed(home()):
        return home()
    own = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), "onnx-environment")
    if not installed(own):
        make(own)
    return own


def python():
    return os.path.join(find(), "bin", "python")


def node_tests():
    """The folder of the backend node tests."""
    library = os.path.join(find(), "lib", f"python{sys.version_info.major}.{sys.version_info.minor}")
    return os.path.join(library, "site-packages", "onnx", "backend", "test", "data", "node")


if __name__ == "__main__":
    if not installed(home()):
        make(home())
