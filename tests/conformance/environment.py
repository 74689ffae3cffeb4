"""A virtual environment for tests that compare with a Python library, made from a file of requirements.

`deploy/install.sh --tests` makes them. A test that does not find its own makes it in its temporary folder.
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

    def find(self):
        """The folder of an environment that has what the requirements name."""
        if self.installed(self.home()):
            return self.home()
        own = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), self.name)
        if not self.installed(own):
            self.make(own)
        return own

    def python(self):
        return os.path.join(self.find(), "bin", "python")

    def install(self):
        if not self.installed(self.home()):
            self.make(self.home())
