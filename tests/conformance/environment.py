"""A virtual environment for tests that compare with a Python library, made from a requirements file.

`deploy/install.sh --tests` makes them. A test without its environment fails with a message: tests may run without network.
"""
import os
import pwd
import subprocess


class Environment:
    def __init__(self, name, requirements):
        self.name = name
        self.requirements = requirements

    def installed(self, folder):
        try:
            with open(os.path.join(folder, "requirements.txt")) as have, open(self.requirements) as want:
                return have.read() == want.read()
        except FileNotFoundError:
            return False

    def make(self, folder):
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", folder], check=True)
        subprocess.run([os.path.join(folder, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check",
                        "-r", self.requirements], check=True)
        with open(self.requirements) as want, open(os.path.join(folder, "requirements.txt"), "w") as have:
            have.write(want.read())

    def home(self):
        # Tests run without $HOME.
        return os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", f"espalier-{self.name}")

    def python(self):
        """The interpreter of the environment that has what the requirements name."""
        if not self.installed(self.home()):
            raise SystemExit(f"the virtual environment {self.home()} is missing or old; run deploy/install.sh --tests")
        return os.path.join(self.home(), "bin", "python")

    def install(self):
        if not self.installed(self.home()):
            self.make(self.home())
