"""Checks Kubernetes manifests without a cluster.

faults(documents, ...) returns one line per mistake that a cluster would accept but that would not work: unknown flags,
ports that nothing listens on, names that do not exist.
"""
import re
import subprocess

import yaml

ADDRESS = re.compile(r"^(.*):(\d+)$")
VARIABLE = re.compile(r"\$\((\w+)\)")


class _Loader(yaml.SafeLoader):
    """Of a key that stands twice in a mapping, YAML's loaders keep the last one without a word."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"given twice: {', '.join(sorted(twice))}",
                                                    node.start_mark)
        return super().construct_mapping(node, deep)


def load(text):
    """The documents of a file. yaml.YAMLError where they do not parse."""
    return [document for document in yaml.load_all(text, _Loader) if document is not None]


def name_of(document):
    return f"{document.get('kind')} {document.get('metadata', {}).get('name')}"


def pods_of(documents):
    """(document, labels, pod's spec) of every workload."""
    for document in documents:
        template = document.get("spec", {}).get("template")
        if template is not None:
            yield document, template["metadata"].get("labels", {}), template["spec"]


def arguments_of(container):
    """(flag with its dashes, value or "") of every argument."""
    return [(flag, value) for flag, _, value in (a.partition("=") for a in container.get("args", []))]


def program_of(container, entrypoint):
    return (container.get("command") or [entrypoint])[0]


def listens_on(container):
    """The addresses on which the flags let the program listen: (flag, host, port)."""
    return [(flag, *ADDRESS.match(value).groups()) for flag, value in arguments_of(container)
            if re.fullmatch(r"--(http[_-])?listen|--http", flag) and ADDRESS.match(value)]


def container_ports(pod):
    """Number by name, and by itself, of all ports that the pod's containers name."""
    ports = {}
    for container in pod["containers"]:
        for port in container.get("ports", []):
            ports[port["containerPort"]] = port["containerPort"]
            if "name" in port:
                ports[port["name"]] = port["containerPort"]
    return ports


def probes_of(container):
    return {kind: container[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in container}


def _selects(selector, labels):
    return selector.items() <= labels.items()


def _headless(service):
    return service["spec"].get("clusterIP") == "None"


def _takes_flags(program, arguments):
    """Returns the program's error for unknown arguments, or None. With --version it only parses them."""
    done = subprocess.run([program, *arguments, "--version"], capture_output=True, text=True, timeout=60)
    return None if done.returncode == 0 else (done.stderr + done.stdout).strip()


def _container_faults(container, pod, programs, entrypoint):
    path = program_of(container, entrypoint)
    folder, _, name = path.rpartition("/")
    if folder != entrypoint.rpartition("/")[0] or name not in programs:
        yield f"the image has no program {path}"
        return
    # What stands for a value at run time is a text here, too; only numbers would be refused, and need none.
    refused = _takes_flags(programs[name], container.get("args", []))
    if refused is not None:
        yield f"{name} does not take its args: {refused}"
    environment = {entry["name"] for entry in container.get("env", [])}
    mounts = [mount["mountPath"].rstrip("/") for mount in container.get("volumeMounts", [])]
    for flag, value in arguments_of(container):
        for variable in set(VARIABLE.findall(value)) - environment:
            yield f"{flag} wants $({variable}), which env does not have"
        if value.startswith("/") and not any(value == m or value.startswith(m + "/") for m in mounts):
            yield f"{flag}={value} lies in no volume"
    listening = listens_on(container)
    for flag, host, _ in listening:
        if host in ("localhost", "[::1]") or host.startswith("127."):
            yield f"{flag} listens on {host}, where only the container itself can reach it"
    named = {port["containerPort"] for port in container.get("ports", [])}
    heard = {int(port) for _, _, port in listening}
    if named != heard:
        yield f"containerPorts are {sorted(named)}, the args listen on {sorted(heard)}"
    for kind, probe in probes_of(container).items():
        port = next((probe[how]["port"] for how in ("httpGet", "tcpSocket") if how in probe), None)
        if port not in container_ports(pod):
            yield f"{kind} asks port {port}, which is none of the container's"
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"mounts volume {mount['name']}, which the pod does not have"


def _pod_faults(document, labels, pod, documents, programs, entrypoint):
    selector = document["spec"]["selector"]["matchLabels"]
    if not _selects(selector, labels):
        yield f"its selector {selector} does not select its pods' labels {labels}"
    have = {(d["kind"], d["metadata"]["name"]) for d in documents}
    for volume in pod.get("volumes", []):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None and ("PersistentVolumeClaim", claim) not in have:
            yield f"volume {volume['name']} claims {claim}, which is not there"
    service = document["spec"].get("serviceName")
    if service is not None and not any(d["kind"] == "Service" and d["metadata"]["name"] == service and _headless(d)
                                       for d in documents):
        yield f"serviceName {service} is no headless service"
    annotations = document["spec"]["template"]["metadata"].get("annotations", {})
    scraped = annotations.get("prometheus.io/port")
    if scraped is not None and int(scraped) not in container_ports(pod):
        yield f"Prometheus is sent to port {scraped}, which no container has"
    elif scraped is not None:
        yield from _policy_faults(labels, int(scraped), pod, documents)
    for container in pod["containers"]:
        for fault in _container_faults(container, pod, programs, entrypoint):
            yield f"container {container['name']}: {fault}"
        for flag, value in arguments_of(container):
            if flag == "--coordinator":
                yield from (f"container {container['name']}: {fault}" for fault in _call_faults(value, documents))


def _call_faults(address, documents):
    """Of an address that a flag names: a service, one of its ports, and gRPC behind it."""
    host, port = ADDRESS.match(address).groups()
    services = [d for d in documents if d["kind"] == "Service" and d["metadata"]["name"] == host.split(".")[0]]
    if not services:
        yield f"{address} is no service's"
        return
    ports = [p for p in services[0]["spec"]["ports"] if p["port"] == int(port)]
    if not ports:
        yield f"service {host} has no port {port}"
        return
    target = ports[0].get("targetPort", ports[0]["port"])
    for _, labels, pod in pods_of(documents):
        if not _selects(services[0]["spec"]["selector"], labels):
            continue
        grpc = {int(p) for c in pod["containers"] for flag, _, p in listens_on(c) if flag == "--listen"}
        if container_ports(pod).get(target) not in grpc:
            yield f"{address} leads to port {target}, where --listen does not listen"
        # It is ready once it has tried all models of its last run, some of which may be on workers.
        if any("readinessProbe" in c for c in pod["containers"]) and \
                not services[0]["spec"].get("publishNotReadyAddresses"):
            yield f"service {host} leads workers to a coordinator only once it is ready, which may wait for them"


def _admits(policy, port, pod):
    """Whether some rule of a policy lets pods of other namespaces reach a port of this pod."""
    for rule in policy["spec"].get("ingress", []):
        ports = rule.get("ports")
        named = ports is None or any(container_ports(pod).get(p.get("port")) == port for p in ports)
        if named and ("from" not in rule or any("namespaceSelector" in source or "ipBlock" in source
                                                for source in rule["from"])):
            return True
    return False


def _policy_faults(labels, scraped, pod, documents):
    """Prometheus has a namespace of its own, as a rule; one policy that lets it in is enough."""
    policies = [d for d in documents if d["kind"] == "NetworkPolicy"
                and _selects(d["spec"]["podSelector"].get("matchLabels", {}), labels)]
    if policies and not any(_admits(policy, scraped, pod) for policy in policies):
        yield (f"Prometheus is sent to port {scraped}, which no NetworkPolicy opens to another namespace: "
               + ", ".join(name_of(policy) for policy in policies))
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                if port.get("port") not in container_ports(pod):
                    yield f"{name_of(policy)} opens port {port.get('port')}, which is none of its"


def _service_faults(service, documents):
    pods = [pod for _, labels, pod in pods_of(documents) if _selects(service["spec"]["selector"], labels)]
    if not pods:
        yield f"selects no pods: {service['spec']['selector']}"
    for pod in pods:
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            if target not in container_ports(pod):
                yield f"port {port['port']} goes to {target}, which is none of the pod's: {container_ports(pod)}"
            elif _headless(service) and container_ports(pod)[target] != port["port"]:
                yield f"port {port['port']} goes to {target}, but a headless service leads to the pod's port itself"


def faults(documents, programs, entrypoint):
    """programs: path by name; entrypoint: that of the image, where containers give no command."""
    found = []
    names = [name_of(document) for document in documents]
    spaces = {d["metadata"]["name"] for d in documents if d.get("kind") == "Namespace"}
    for document, name in zip(documents, names):
        if not (document.get("apiVersion") and document.get("kind") and document.get("metadata", {}).get("name")):
            found.append(f"{name}: apiVersion, kind and metadata.name are wanted")
        if names.count(name) > 1:
            found.append(f"{name} is there more than once")
        space = document.get("metadata", {}).get("namespace")
        if document.get("kind") != "Namespace" and space not in spaces:
            found.append(f"{name} is in namespace {space}, which is not there")
        if document.get("kind") == "Service":
            found += [f"{name}: {fault}" for fault in _service_faults(document, documents)]
    for document, labels, pod in pods_of(documents):
        found += [f"{name_of(document)}: {fault}"
                  for fault in _pod_faults(document, labels, pod, documents, programs, entrypoint)]
    return found
