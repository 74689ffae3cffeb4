"""What of the rendered manifests the chart's values may vary: where it stands, and what is accepted."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

COORDINATOR, WORKER = "StatefulSet/espalier-coordinator", "StatefulSet/espalier-worker"
POD = "spec/template/spec"
DAEMON, WORKS = f"{POD}/containers/espalierd", f"{POD}/containers/espalier-worker"

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
WORD = {"type": "string", "pattern": "^[-A-Za-z0-9_./:@]+$", "maxLength": 500}
BYTES = {"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi|Ti)$"}
COUNT = CORES = {"type": "integer", "minimum": 1, "maximum": 10000}
FLAGS = {"type": "array", "items": {"type": "string", "pattern": "^--[a-z][-a-z]*(=.*)?$"}}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


@dataclass(frozen=True)
class Place:
    """A text in the manifests. pattern: its groups are the values; the whole text if there is none."""

    document: str
    path: str
    pattern: str = "(.*)"


@dataclass(frozen=True)
class Value:
    name: str  # in values.yaml, with dots
    schema: dict[str, Any]
    description: str
    places: tuple[Place, ...]
    group: int = 1  # of the pattern


@dataclass(frozen=True)
class Addition:
    """What the manifests do not have, and a value can put into a mapping or at the end of a list."""

    name: str
    schema: dict[str, Any]
    description: str
    places: tuple[tuple[str, str], ...]  # document and path of the mapping or list
    key: str = ""  # in a mapping
    default: Any = field(default_factory=list)


# By component: its name in values.yaml and what it is.
COMPONENTS = {
    "s3": ("s3", "checkpoints in S3, with keys from a secret; not with webIdentity"),
    "web-identity": ("webIdentity", "checkpoints in S3, with the role of a service account; not with s3"),
    "gpu": ("gpu", "a GPU of NVIDIA for each worker"),
    "pdb": ("podDisruptionBudget", "drains of nodes take one worker at a time"),
    "networkpolicy": ("networkPolicy", "only the connections that the programs need"),
    "servicemonitor": ("serviceMonitor", "scraped by the Prometheus operator"),
    "hpa": ("autoscaling", "workers by the queue; wants an external metric, docs/operations/kubernetes.md"),
    "standby": ("standby", "two coordinators, of which one leads, with etcd; not with certManager"),
    "standby-own-disks": ("standbyOwnDisks", "the same without a shared volume; with certManager, and s3 or webIdentity of the same bucket"),
    "cert-manager": ("certManager", "certificates of cert-manager in place of join tokens; not with standby"),
    "gateway": ("gateway", "HTTP from outside by the Gateway API"),
}
EXCLUSIVE = (("s3", "webIdentity"), ("standby", "certManager"), ("standby", "standbyOwnDisks"))
# What a component needs of each group one.
NEEDED = {"standbyOwnDisks": (("certManager",), ("s3", "webIdentity"))}


def both(path: str, pattern: str = "(.*)") -> tuple[Place, ...]:
    return tuple(Place(document, path.replace("CONTAINER", container), pattern)
                 for document, container in ((COORDINATOR, DAEMON), (WORKER, WORKS)))


def memory(document: str, container: str) -> tuple[Place, ...]:
    return tuple(Place(document, f"{container}/resources/{kind}/memory") for kind in ("requests", "limits"))


IMAGE = both("CONTAINER/image", r"(.*):([^:]*)")
STORE = r"--checkpoint-store=s3://(.*)"
VALUES = (
    Value("image.repository", WORD, "the image with the three programs (deploy/Containerfile)", IMAGE),
    Value("image.tag", WORD, "its tag", IMAGE, group=2),
    Value("image.pullPolicy", {"enum": ["Always", "IfNotPresent", "Never"]}, "when nodes fetch it", both("CONTAINER/imagePullPolicy")),
    Value("coordinator.cpu", CORES, "cores", (Place(COORDINATOR, f"{DAEMON}/resources/requests/cpu"),)),
    Value("coordinator.memory", BYTES, "memory, also for the models that it serves itself", memory(COORDINATOR, DAEMON)),
    Value("coordinator.storage.size", BYTES, "its volume: jobs, datasets, models, and checkpoints unless they are in S3",
          (Place(COORDINATOR, "spec/volumeClaimTemplates/0/spec/resources/requests/storage"),
           Place("PersistentVolumeClaim/espalier-data", "spec/resources/requests/storage"))),
    Value("worker.replicas", COUNT, "workers; not with autoscaling", (Place(WORKER, "spec/replicas"),)),
    Value("worker.cpu", CORES, "cores of each", (Place(WORKER, f"{WORKS}/resources/requests/cpu"),)),
    Value("worker.memory", BYTES, "memory of each", memory(WORKER, WORKS)),
    Value("worker.cacheSize", BYTES, "its volume of datasets and models, more than the 16 GiB of --cache-bytes",
          (Place(WORKER, f"{POD}/volumes/cache/emptyDir/sizeLimit"),)),
    Value("worker.joinSecret", NAME, "the secret whose `token` is one of `espalier token create --role=worker`",
          (Place(WORKER, f"{POD}/volumes/join/secret/secretName"),)),
    Value("s3.bucket", WORD, "BUCKET/PREFIX", (Place(COORDINATOR, f"{DAEMON}/args/s3", STORE),)),
    Value("s3.secretName", NAME, "with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL_S3",
          both("CONTAINER/envFrom/0/secretRef/name")),
    Value("webIdentity.bucket", WORD, "BUCKET/PREFIX", (Place(COORDINATOR, f"{DAEMON}/args/web-identity", STORE),)),
    Value("webIdentity.roleArn", WORD, "the role", both("CONTAINER/env/AWS_ROLE_ARN/value")),
    Value("webIdentity.region", WORD, "the bucket's region", both("CONTAINER/env/AWS_REGION/value")),
    Value("networkPolicy.monitoringNamespace", NAME, "where Prometheus is",
          (Place("NetworkPolicy/espalier-coordinator", "spec/ingress/1/from/0/namespaceSelector/matchLabels/kubernetes.io/metadata.name"),)),
    Value("serviceMonitor.secretName", NAME, "with `token` (--role=monitor) and `ca.pem`",
          (Place("ServiceMonitor/espalier", "spec/endpoints/0/authorization/credentials/name"),
           Place("ServiceMonitor/espalier", "spec/endpoints/0/tlsConfig/ca/secret/name"))),
    Value("autoscaling.minReplicas", COUNT, "fewest workers", (Place("HorizontalPodAutoscaler/espalier-worker", "spec/minReplicas"),)),
    Value("autoscaling.maxReplicas", COUNT, "most workers", (Place("HorizontalPodAutoscaler/espalier-worker", "spec/maxReplicas"),)),
    Value("standby.jobStore", {"type": "string", "pattern": "^etcd://[-A-Za-z0-9_.:,/]+$"}, "etcd://HOST:PORT[,HOST:PORT...]/PREFIX; also of standbyOwnDisks",
          tuple(Place(COORDINATOR, f"{DAEMON}/args/{name}", r"--job-store=(.*)") for name in ("standby", "standby-own-disks"))),
    Value("standby.etcdSecret", NAME, "with ca.crt, tls.crt and tls.key of a client of etcd; also of standbyOwnDisks",
          (Place(COORDINATOR, f"{POD}/volumes/etcd/secret/secretName"),)),
    Value("standbyOwnDisks.bucket", WORD, "BUCKET/PREFIX for models and datasets; may be that of the checkpoints",
          (Place(COORDINATOR, f"{DAEMON}/args/standby-own-disks", r"--artifact-store=s3://(.*)"),)),
    Value("certManager.keysSecret", NAME, "API keys: `coordinator` and `worker`", both(f"{POD}/volumes/keys/secret/secretName")),
    Value("gateway.name", NAME, "of the Gateway", (Place("HTTPRoute/espalier", "spec/parentRefs/gateway/name"),)),
    Value("gateway.namespace", NAME, "where it is", (Place("HTTPRoute/espalier", "spec/parentRefs/gateway/namespace"),)),
    Value("gateway.host", NAME, "the host name", (Place("HTTPRoute/espalier", "spec/hostnames/0"),)),
)
ADDITIONS = (
    Addition("image.pullSecrets", {"type": "array", "items": {"type": "object", "additionalProperties": False, "required": ["name"],
                                                              "properties": {"name": NAME}}},
             "secrets of the registry, as [{name: …}]", ((COORDINATOR, POD), (WORKER, POD)), "imagePullSecrets"),
    Addition("coordinator.extraArgs", FLAGS, "more flags of espalierd", ((COORDINATOR, f"{DAEMON}/args"),)),
    Addition("coordinator.nodeSelector", LABELS, "labels of its nodes", ((COORDINATOR, POD),), "nodeSelector", {}),
    Addition("coordinator.storage.className", {"anyOf": [{"const": ""}, NAME]}, "class of its volume; empty: the cluster's default",
             ((COORDINATOR, "spec/volumeClaimTemplates/0/spec"), ("PersistentVolumeClaim/espalier-data", "spec")), "storageClassName", ""),
    Addition("worker.extraArgs", FLAGS, "more flags of espalier-worker", ((WORKER, f"{WORKS}/args"),)),
    Addition("worker.nodeSelector", LABELS, "labels of their nodes", ((WORKER, POD),), "nodeSelector", {}),
)
