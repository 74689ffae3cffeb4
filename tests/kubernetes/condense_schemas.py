"""Condenses CustomResourceDefinitions to the schemas in schemas/: condense_schemas.py CRD.yaml...

Descriptions and CEL rules go, mappings are closed, and what repeats a type of Kubernetes becomes a reference to it.
"""
import json
import os
import sys

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from kubernetes_environment import ENVIRONMENT  # noqa: E402

CORE, META = "/api/_definitions.json#/$defs/io.k8s.api.core.v1.", "/api/_definitions.json#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1."
# A mapping with these keys, and none that the type does not have, is taken for it.
MARKS = {
    "PodSpec": {"containers", "nodeSelector"}, "Container": {"image", "command", "volumeMounts"}, "Volume": {"configMap", "secret", "emptyDir"},
    "Affinity": {"nodeAffinity"}, "PodSecurityContext": {"fsGroup"}, "SecurityContext": {"allowPrivilegeEscalation"},
    "Probe": {"httpGet", "failureThreshold"}, "Lifecycle": {"preStop"}, "EnvVar": {"valueFrom", "value"},
    "ResourceRequirements": {"limits", "requests"}, "PersistentVolumeClaimSpec": {"accessModes", "volumeMode"},
    "Toleration": {"tolerationSeconds"}, "TopologySpreadConstraint": {"whenUnsatisfiable"}, "VolumeMount": {"mountPath", "name"},
    "EnvFromSource": {"configMapRef", "secretRef"},
}
DROPPED = {"description", "default", "title", "example", "format"}
KEPT = {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
# KServe's former ways to name a framework, and the parts of a service that no example has.
UNUSED = {"huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow", "triton", "xgboost", "transformer", "explainer"}


class Condenser:
    def __init__(self):
        with open(ENVIRONMENT.path("schemas", "_definitions.json")) as file:
            definitions = json.load(file)["$defs"]
        self.types = {name: set(definitions["io.k8s.api.core.v1." + name]["properties"]) for name in MARKS}

    def node(self, node):
        if not isinstance(node, dict):
            return node
        keys = set(node.get("properties", {}))
        for name, mark in MARKS.items():
            if mark <= keys <= self.types[name]:
                return {"$ref": CORE + name}
        out = {}
        for key, value in node.items():
            if key in DROPPED or key.startswith("x-kubernetes-") and key not in KEPT:
                continue
            if key == "properties":
                value = {name: self.node(part) for name, part in value.items() if name not in UNUSED}
            elif key in ("items", "additionalProperties", "not"):
                value = self.node(value)
            elif key in ("allOf", "anyOf", "oneOf"):
                value = [self.node(part) for part in value]
            out[key] = value
        if "properties" in out and not out.get("x-kubernetes-preserve-unknown-fields"):
            out.setdefault("additionalProperties", False)
        return out

    def condense(self, definition):
        spec = definition["spec"]
        version = next(version for version in spec["versions"] if version["storage"])
        schema = self.node(version["schema"]["openAPIV3Schema"])
        schema["properties"].pop("status", None)
        schema["properties"] |= {"apiVersion": {"const": f"{spec['group']}/{version['name']}"}, "kind": {"const": spec["names"]["kind"]},
                                 "metadata": {"$ref": META + "ObjectMeta"}}
        schema["required"] = sorted({*schema.get("required", []), "apiVersion", "kind", "metadata"})
        return spec["names"]["kind"].lower(), schema


def main():
    condenser = Condenser()
    for path in sys.argv[1:]:
        with open(path) as file:
            name, schema = condenser.condense(yaml.load(file, yaml.CSafeLoader))
        with open(os.path.join(HERE, "schemas", name + ".json"), "w") as file:
            file.write(json.dumps(schema, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
