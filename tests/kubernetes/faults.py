"""Finds what a cluster would accept in manifests but that would not work, and what Pod Security's "restricted" refuses.

faults(documents, ...) returns one line per mistake: unknown flags, ports that nothing listens on, names that do not exist.
"""
import re
import subprocess

ADDRESS = re.compile(r"^(.*):(\d+)$")
VARIABLE = re.compile(r"\$\((\w+)\)")
METRIC = re.compile(r"\bespalier_\w+")
SHELL = "/bin/sh"  # what it runs, pods_test.py sees


def name_of(document):
    return f"{document['kind']} {document['metadata']['name']}"


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def workloads(documents):
    """(name, labels, pod's spec) of every pod that is wanted, also within kinds of other projects."""
    for document in documents:
        name, spec = name_of(document), document.get("spec", {})
        if "replicatedJobs" in spec.get("template", {}).get("spec", {}):
            for job in spec["template"]["spec"]["replicatedJobs"]:
                template = job["template"]["spec"]["template"]
                yield f"{name}, {job['name']}", template.get("metadata", {}).get("labels", {}), template["spec"]
        elif "leaderWorkerTemplate" in spec:
            template = spec["leaderWorkerTemplate"]["workerTemplate"]
            yield name, template["metadata"]["labels"], template["spec"]
        elif document["kind"] == "ServingRuntime":
            yield name, {}, spec
        elif "template" in spec:
            pod = spec["template"]["spec"]
            claims = [{"name": claim["metadata"]["name"], "persistentVolumeClaim": {}} for claim in spec.get("volumeClaimTemplates", [])]
            yield name, spec["template"]["metadata"].get("labels", {}), {**pod, "volumes": pod.get("volumes", []) + claims}


def arguments_of(container):
    """(flag with its dashes, value or "") of every argument."""
    return [(flag, value) for flag, _, value in (a.partition("=") for a in container.get("args", []))]


def listens_on(container):
    return [int(ADDRESS.match(value).group(2)) for flag, value in arguments_of(container) if flag in ("--listen", "--http-listen")]


def ports_of(pod):
    """Number by name, and by itself, of all ports that the pod's containers name."""
    named = [port for container in pod["containers"] for port in container.get("ports", [])]
    return {key: port["containerPort"] for port in named for key in (port["containerPort"], port.get("name"))}


def selects(selector, labels):
    return selector.items() <= labels.items()


def restricted(pod):
    """What the Pod Security Standards' "restricted" refuses, and what these manifests promise beyond it."""
    for container in pod["containers"]:
        own = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        wanted = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "seccompProfile": {"type": "RuntimeDefault"},
                  "capabilities": {"drop": ["ALL"]}}
        yield from (f"{key} is {own.get(key)}" for key, value in wanted.items() if own.get(key) != value)
        if not own.get("runAsUser"):
            yield "runAsUser is root's or the image's"
        for kind, amounts in (("requests", ("cpu", "memory")), ("limits", ("memory",))):
            yield from (f"no {kind} of {what}" for what in amounts if what not in container.get("resources", {}).get(kind, {}))
    for volume in pod.get("volumes", []):
        kind = (volume.keys() - {"name"}).pop()
        if kind not in ("emptyDir", "secret", "projected", "persistentVolumeClaim"):
            yield f"volume {volume['name']} is a {kind}"
        if kind == "secret" and volume["secret"].get("defaultMode") != 0o400:
            yield f"secret {volume['secret']['secretName']} has mode {volume['secret'].get('defaultMode')}, which the programs refuse"


def _container_faults(container, pod, programs):
    path = container["command"][0]
    if path == SHELL:
        return
    folder, _, name = path.rpartition("/")
    if folder != "/usr/local/bin" or name not in programs:
        yield f"the image has no program {path}"
        return
    # What stands for a number at run time is replaced; with --version the program only reads its flags.
    arguments = [VARIABLE.sub("1", argument) for argument in container.get("args", [])]
    done = subprocess.run([programs[name], *arguments, "--version"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        yield f"{name} does not take its args: {(done.stderr + done.stdout).strip()}"
    environment = {entry["name"] for entry in container.get("env", [])}
    mounts = [mount["mountPath"].rstrip("/") for mount in container.get("volumeMounts", [])]
    flags = [flag for flag, _ in arguments_of(container)]
    yield from (f"{flag} is given twice" for flag in sorted(set(flags)) if flags.count(flag) > 1)
    for flag, value in arguments_of(container):
        yield from (f"{flag} wants $({variable}), which env does not have" for variable in sorted(set(VARIABLE.findall(value)) - environment))
        if value.startswith("/") and not any(value.startswith(mount + "/") or value == mount for mount in mounts):
            yield f"{flag}={value} lies in no volume"
        if flag.endswith("listen") and re.match(r"localhost|127\.|\[::1\]", value):
            yield f"{flag} listens on {value}, where only the container itself can reach it"
    named = {port["containerPort"] for port in container.get("ports", [])}
    if named != set(listens_on(container)):
        yield f"containerPorts are {sorted(named)}, the args listen on {listens_on(container)}"
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(kind, {"tcpSocket": {"port": next(iter(named))}})
        how = probe.get("httpGet") or probe["tcpSocket"]
        if how["port"] not in ports_of(pod):
            yield f"{kind} asks port {how['port']}, which is none of the container's"
        encrypted = any(flag in ("--tls", "--tls-cert") for flag in flags)
        if "httpGet" in probe and (how.get("scheme") == "HTTPS") != encrypted:
            yield f"{kind} asks by {how.get('scheme', 'HTTP')}, which the args do not speak"
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    yield from (f"mounts volume {mount['name']}, which the pod does not have" for mount in container.get("volumeMounts", [])
                if mount["name"] not in volumes)


def _drain_faults(pod):
    for container in pod["containers"]:
        # What is left to end in, and --drain-timeout's default.
        rest, default = (5, 25.0) if container["command"][0].endswith("/espalier-worker") else (10, 0.0)
        drain = next((float(value) for flag, value in arguments_of(container) if flag in ("--drain-seconds", "--drain-timeout")), default)
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])
        grace = pod.get("terminationGracePeriodSeconds", 30)
        if grace < drain + float(hook[1]) + rest * bool(drain):
            yield f"terminationGracePeriodSeconds {grace} is too short for preStop and drain"


def _call_faults(address, documents):
    """Of an address that workers are given: a service, or a pod behind it, its port, and gRPC there."""
    host, port = ADDRESS.match(address).groups()
    services = {service["metadata"]["name"]: service for service in of_kind(documents, "Service")}
    pod_names = {f"{name}-{number}.{document['spec']['serviceName']}" for document in of_kind(documents, "StatefulSet")
                 for name in [document["metadata"]["name"]] for number in range(document["spec"].get("replicas", 1))}
    service = services.get(host.split(".")[-1] if host in pod_names else host)
    if service is None:
        yield f"{address} is no service's"
        return
    if not service["spec"].get("publishNotReadyAddresses"):
        yield f"{host} leads workers to a coordinator only once it is ready, which may wait for them"
    target = next((p.get("targetPort", p["port"]) for p in service["spec"]["ports"] if p["port"] == int(port)), None)
    for _, labels, pod in workloads(documents):
        if selects(service["spec"]["selector"], labels):
            grpc = {int(ADDRESS.match(value).group(2)) for c in pod["containers"] for flag, value in arguments_of(c) if flag == "--listen"}
            if ports_of(pod).get(target) not in grpc:
                yield f"{address} leads to port {target}, where --listen does not listen"


def _set_faults(document, documents):
    template = document["spec"]["template"]
    if not selects(document["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]):
        yield "its selector does not select its pods"
    services = [s for s in of_kind(documents, "Service") if s["metadata"]["name"] == document["spec"]["serviceName"]]
    if not services or services[0]["spec"].get("clusterIP") != "None":
        yield f"serviceName {document['spec']['serviceName']} is no headless service"
    have = {claim["metadata"]["name"] for claim in of_kind(documents, "PersistentVolumeClaim")}
    yield from (f"claims {v['persistentVolumeClaim']['claimName']}, which is not there" for v in template["spec"]["volumes"]
                if "persistentVolumeClaim" in v and v["persistentVolumeClaim"]["claimName"] not in have)
    account = template["spec"].get("serviceAccountName")
    if account is not None and account not in {a["metadata"]["name"] for a in of_kind(documents, "ServiceAccount")}:
        yield f"has the service account {account}, which is not there"
    if template["spec"].get("automountServiceAccountToken") is not False:
        yield "gets a token of the cluster's"


def _service_faults(service, documents):
    pods = [pod for _, labels, pod in workloads(documents) if selects(service["spec"]["selector"], labels)]
    if not pods:
        yield f"selects no pods: {service['spec']['selector']}"
    for pod in pods:
        for port in service["spec"]["ports"]:
            target = ports_of(pod).get(port.get("targetPort", port["port"]))
            if target is None:
                yield f"port {port['port']} goes to {port.get('targetPort')}, which is none of the pod's"
            elif service["spec"].get("clusterIP") == "None" and target != port["port"]:
                yield f"port {port['port']} goes to {target}, but a headless service leads to the pod's port itself"


def _port_of_service(documents, name, port):
    return any(service["metadata"]["name"] == name and any(port in (p["port"], p["name"]) for p in service["spec"]["ports"])
               for service in of_kind(documents, "Service"))


def _monitor_faults(documents):
    for monitor in of_kind(documents, "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            found = [s for s in of_kind(documents, "Service") if selects(monitor["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])
                     and any(p["name"] == endpoint["port"] for p in s["spec"]["ports"])]
            if len(found) != 1:
                yield f"port {endpoint['port']} is of {len(found)} services that it selects"
            elif endpoint["tlsConfig"]["serverName"] != found[0]["metadata"]["name"]:
                yield "expects a name that the certificate does not have"


def _scaler_faults(documents, metrics):
    records = {rule["record"]: rule["expr"] for r in of_kind(documents, "PrometheusRule") for group in r["spec"]["groups"] for rule in group["rules"]}
    for expression in records.values():
        yield from (f"asks for {name}, which is no metric" for name in sorted(set(METRIC.findall(expression)) - set(metrics)))
    for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        targets = [d for d in of_kind(documents, target["kind"]) if d["metadata"]["name"] == target["name"]]
        if not targets:
            yield f"scales {target['name']}, which is not there"
        elif "replicas" in targets[0]["spec"]:
            yield f"{target['name']} has replicas of its own, which each apply would set again"
        yield from (f"wants {m['external']['metric']['name']}, which no rule makes" for m in scaler["spec"]["metrics"]
                    if m["external"]["metric"]["name"] not in records)


def _route_faults(documents):
    for route in of_kind(documents, "HTTPRoute"):
        yield from (f"leads to {b['name']}:{b['port']}, which is no service's" for rule in route["spec"]["rules"] for b in rule["backendRefs"]
                    if not _port_of_service(documents, b["name"], b["port"]))
    for policy in of_kind(documents, "BackendTLSPolicy"):
        yield from (f"is for {t['name']}, {t['sectionName']}, which is no service's" for t in policy["spec"]["targetRefs"]
                    if not _port_of_service(documents, t["name"], t["sectionName"]))


def faults(documents, programs, metrics):
    """programs: path by name; metrics: the names of those that there are."""
    found = [f"{name_of(d)} names a namespace" for d in documents if "namespace" in d["metadata"]]
    names = [name_of(document) for document in documents]
    found += [f"{name} is there more than once" for name in sorted(set(names)) if names.count(name) > 1]
    for name, _, pod in workloads(documents):
        found += [f"{name}: {fault}" for fault in [*restricted(pod), *_drain_faults(pod)]]
        for container in pod["containers"]:
            found += [f"{name}, {container['name']}: {fault}" for fault in _container_faults(container, pod, programs)]
            for flag, value in arguments_of(container):
                if flag == "--coordinator":
                    found += [f"{name}: {fault}" for address in value.split(",") for fault in _call_faults(address, documents)]
    for document in documents:
        check = {"StatefulSet": _set_faults, "Service": _service_faults}.get(document["kind"])
        if check is not None:
            found += [f"{name_of(document)}: {fault}" for fault in check(document, documents)]
    return [*found, *_monitor_faults(documents), *_scaler_faults(documents, metrics), *_route_faults(documents)]


def _matches(peers, key, labels, space):
    """Whether one of the peers of a rule (all, if there are none) is a pod with these labels in this namespace."""
    for peer in peers.get(key, [{}]):
        of_namespaces = peer.get("namespaceSelector")
        if of_namespaces is not None and not selects(of_namespaces.get("matchLabels", {}), space):
            continue
        if peer and of_namespaces is None and space:
            continue  # the policy's own namespace only
        if selects(peer.get("podSelector", {}).get("matchLabels", {}), labels):
            return True
    return False


def _lets(policies, direction, labels, key, other, port, space, protocol):
    own = [p["spec"] for p in policies if selects(p["spec"]["podSelector"].get("matchLabels", {}), labels) and direction.title() in p["spec"]["policyTypes"]]
    return not own or any(_matches(rule, key, other, space) and ("ports" not in rule or {"protocol": protocol, "port": port} in rule["ports"])
                          for policy in own for rule in policy.get(direction, []))


def admitted(policies, client, server, port, client_space=None, server_space=None, protocol="TCP"):
    """Whether the policies let a pod with the client's labels reach a port of one with the server's. A space is the labels of a
    namespace, if it is another one than that of the policies; None: theirs."""
    return ((client_space is not None or _lets(policies, "egress", client, "to", server, port, server_space or {}, protocol))
            and (server_space is not None or _lets(policies, "ingress", server, "from", client, port, client_space or {}, protocol)))
