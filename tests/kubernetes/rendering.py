"""What kubectl and helm make of deploy/kubernetes and deploy/helm, and what Kubernetes' schemas say about it."""
import functools
import json
import os
import re
import subprocess
import sys
import tempfile

import jsonschema
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from kubernetes_environment import ENVIRONMENT  # noqa: E402

ROOT = os.path.join(HERE, "..", "..")
KUBERNETES = os.path.join(ROOT, "deploy", "kubernetes")
CHART = os.path.join(ROOT, "deploy", "helm", "espalier")
COMPONENTS = ("s3", "web-identity", "gpu", "pdb", "networkpolicy", "servicemonitor", "hpa", "standby", "standby-own-disks", "cert-manager",
              "gateway")
EXAMPLES = ("kubeflow-trainer", "leaderworkerset", "kserve")
REFERENCE = "/api/_definitions.json#/"


class Refused(Exception):
    pass


def run(program, *arguments, given=None):
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([ENVIRONMENT.path("bin", program), *arguments], input=given, capture_output=True, text=True, timeout=60,
                              env={"HOME": home, "PATH": "/usr/bin:/bin"})
    if done.returncode != 0:
        raise Refused(done.stderr)
    return done.stdout


def documents_of(text):
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document is not None]


def kustomize(folder):
    return documents_of(run("kubectl", "kustomize", folder))


def overlay(components, base="base"):
    """A kustomization of the base and these components, rendered."""
    # Their copies: kustomize takes no absolute paths, and Bazel's are links.
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "kubernetes")
        subprocess.run(["cp", "-rL", KUBERNETES, copy], check=True)
        os.makedirs(os.path.join(copy, "overlays", "own"), exist_ok=True)
        with open(os.path.join(copy, "overlays", "own", "kustomization.yaml"), "w") as file:
            yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [f"../../{base}"],
                            "components": [f"../../components/{name}" for name in components]}, file)
        return kustomize(os.path.join(copy, "overlays", "own"))


def commands_of_the_page(page, heading):
    """The lines of the first block of commands under a heading of docs/operations/kubernetes.md, without comments."""
    block = re.search(rf"{re.escape(heading)}.*?```sh\n(.*?)```", page, re.S)
    return [re.sub(r"\s+#.*", "", line) for line in block.group(1).splitlines() if line]


def example(name):
    return overlay((), base=f"examples/{name}")


@functools.cache
def _definitions():
    with open(ENVIRONMENT.path("schemas", "_definitions.json")) as file:
        return json.loads(file.read().replace(f'"{REFERENCE}', '"#/'))["$defs"]


def _read(path):
    with open(path) as file:
        return json.loads(file.read().replace(f'"{REFERENCE}', '"#/'))


@functools.cache
def schema_of(api_version, kind):
    """Of Kubernetes itself, or of a kind that another project has added (schemas/README.md)."""
    group, _, version = api_version.rpartition("/")
    name = "-".join([kind.lower(), *([group.split(".")[0]] if group else []), version]) + ".json"
    own = os.path.join(HERE, "schemas", kind.lower() + ".json")
    path = own if os.path.exists(own) else ENVIRONMENT.path("schemas", name)
    return {**_read(path), "$defs": _definitions()}


def schema_faults(document):
    validator = jsonschema.Draft202012Validator(schema_of(document["apiVersion"], document["kind"]))
    return [f"{document['kind']} {document['metadata'].get('name')}: {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
            for error in validator.iter_errors(document)]
