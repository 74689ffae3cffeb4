"""Runs the pods of rendered manifests on this machine, as a kubelet would, for what the manifests claim: each pod has a network,
a file system and a host name of its own, the user, groups, capabilities and read-only root of its security context, volumes and
secrets with the owners and modes that Kubernetes gives them, and exactly the container's command, arguments and environment.

Not there: a container runtime, seccomp, cgroups, enforced network policies and proxies of services. Needs root.
"""
import base64
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from name_server import DOMAIN, NameServer  # noqa: E402

PREFIX = "10.78.0."
NODE = PREFIX + "1"
VARIABLE = re.compile(r"\$\((\w+)\)")
FOLDERS = ("bin", "etc", "lib", "lib64", "sbin", "usr")  # of this machine's root, which stands for the image's


def why_not():
    """Empty where pods can be made."""
    if os.getuid() != 0:
        return "pods with users, networks and mounts of their own need root"
    probe = "mount -t tmpfs none /mnt && ip link add name br0 type bridge && setpriv --reuid=10001 --regid=10001 --clear-groups true"
    done = subprocess.run(["unshare", "--net", "--mount", "--uts", "--", "sh", "-c", probe], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no pods can be made here: {done.stderr.strip()}"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def quantity(text):
    return int(text.removesuffix("m")) / 1000 if text.endswith("m") else int(text)


class Pod:
    def __init__(self, cluster, name, spec):
        self.cluster, self.name, self.spec = cluster, name, spec
        self.container = spec["containers"][0]
        self.address = f"{PREFIX}{cluster.next_address()}"
        self.folder = os.path.join(cluster.folder, "pods", f"{name}-{self.address}")
        self.root, self.log = os.path.join(self.folder, "root"), os.path.join(self.folder, "log")
        self.group = spec.get("securityContext", {}).get("fsGroup", self.container["securityContext"].get("fsGroup"))
        self.process, self.link = None, "pod" + self.address.removeprefix(PREFIX)
        os.makedirs(self.root)
        os.chmod(self.folder, 0o755)
        # Says when it is in its namespaces, and keeps them.
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "--", "sh", "-c",
                                        f"mount --make-rprivate / && hostname {name} && echo in && exec sleep infinity"],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.holder.stdout.readline() == "in\n"
        try:
            self.connect()
            self.lay()
        except BaseException:
            self.close()
            raise

    def inside(self, *command):
        done = subprocess.run(["nsenter", "--net", "--mount", "--uts", f"--target={self.holder.pid}", "--", *command],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"{self.name}: {command}: {done.stderr}")
        return done

    def connect(self):
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        ip("link", "set", self.link, "master", "br0", "up")
        self.inside("sh", "-ec", f"ip link set lo up; ip address add {self.address}/24 dev eth0; ip link set eth0 up; "
                                 f"ip route add default via {NODE}")

    def lay(self):
        """The root: what of this machine's stands for the image, and the volumes; read-only where the manifest says so."""
        steps = [f"mount -t tmpfs -o mode=755 none {self.root}", f"cd {self.root}", "mkdir dev proc tmp var mnt run"]
        steps += [f"if [ -L /{name} ]; then cp -P /{name} .; else mkdir {name}; mount --bind /{name} {name}; fi" for name in FOLDERS]
        steps += ["mount --rbind /dev dev", "mount --rbind /proc proc", "mount -t tmpfs none usr/local/bin", "mount -t tmpfs none dev/shm"]
        for name, program in self.cluster.programs.items():
            steps += [f"touch usr/local/bin/{name}", f"mount --bind {os.path.realpath(program)} usr/local/bin/{name}"]
        # The runtime's files, and room for mount points under /etc, which it makes in the image.
        steps += [f"cp -a /etc {self.folder}/etc", f"mount --bind {self.folder}/etc etc"]
        steps += [f"cp {self.folder}/resolv.conf {self.folder}/hosts etc/"]
        for name, text in ("hosts", f"127.0.0.1 localhost\n{self.address} {self.name}\n"), ("resolv.conf", self.cluster.dns.configuration):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write(text)
        mounts = [(mount, self.volume(mount["name"])) for mount in self.container.get("volumeMounts", [])]
        for mount, source in mounts:
            target = self.root + mount["mountPath"]
            steps += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
            if mount.get("readOnly"):
                steps += [f"mount -o remount,bind,ro {target}"]
        if self.container["securityContext"].get("readOnlyRootFilesystem"):
            steps += [f"mount -o remount,ro {self.root}", f"mount -o remount,bind,ro {self.root}/etc"]
        self.inside("sh", "-ec", "\n".join(steps))

    def volume(self, name):
        volume = next((v for v in self.spec.get("volumes", []) if v["name"] == name), None)
        if volume is None:  # a claim of a StatefulSet's template
            return self.cluster.claim(f"{name}-{self.name}", self.group)
        if "persistentVolumeClaim" in volume:
            return self.cluster.claim(volume["persistentVolumeClaim"]["claimName"], self.group)
        path = os.path.join(self.folder, "volumes", name)
        os.makedirs(path)
        if "secret" in volume:
            self.write_secret(path, volume["secret"])
        else:
            assert "emptyDir" in volume, volume
            os.chown(path, 0, self.group)
            os.chmod(path, 0o2777)
        return path

    def write_secret(self, path, volume):
        """As a kubelet's atomic writer: files of root and the pod's group, which may read them, behind links."""
        data = self.cluster.secrets[volume["secretName"]]
        items = {item["key"]: item["path"] for item in volume.get("items", [])} or {key: key for key in data}
        os.makedirs(os.path.join(path, "..first"))
        os.symlink("..first", os.path.join(path, "..data"))
        for key, name in items.items():
            file = os.path.join(path, "..first", name)
            with open(file, "wb") as out:
                out.write(data[key])
            os.chown(file, 0, self.group)
            os.chmod(file, volume.get("defaultMode", 0o644) | 0o440)
            os.symlink(os.path.join("..data", name), os.path.join(path, name))

    def environment(self):
        values = {}
        for entry in self.container.get("envFrom", []):
            values |= {key: value.decode() for key, value in self.cluster.secrets[entry["secretRef"]["name"]].items()}
        for entry in self.container.get("env", []):
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                field = source["fieldRef"]["fieldPath"]
                values[entry["name"]] = {"metadata.name": self.name, "metadata.namespace": self.cluster.namespace, "status.podIP": self.address}[field]
            elif "resourceFieldRef" in source:
                kind, _, resource = source["resourceFieldRef"]["resource"].partition(".")
                values[entry["name"]] = str(-int(-quantity(self.container["resources"][kind][resource]) // 1))
            else:
                values[entry["name"]] = entry["value"]
        return values

    def command(self, command):
        """Runs it as the container's user, with its environment, in the pod."""
        context = {**self.spec.get("securityContext", {}), **self.container["securityContext"]}
        assert context["runAsNonRoot"] and context["runAsUser"] != 0 and not context["allowPrivilegeEscalation"]
        assert context["capabilities"]["drop"] == ["ALL"]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/var/lib/espalier", "HOSTNAME": self.name,
                       **self.environment()}
        values = [f"{key}={value}" for key, value in environment.items()]
        return ["nsenter", "--net", "--mount", "--uts", f"--target={self.holder.pid}", "--", "/usr/sbin/chroot", self.root, "/usr/bin/setpriv",
                f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}", f"--groups={self.group}", "--no-new-privs",
                "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--", "/usr/bin/env", "-i", "-C", "/", *values, *command]

    def expanded(self, words):
        values = self.environment()
        return [VARIABLE.sub(lambda match: values[match.group(1)], word) for word in words]

    def start(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.command(self.expanded([*self.container["command"], *self.container.get("args", [])])),
                                            stdout=log, stderr=log)

    def exec(self, command, given=None, check=True, timeout=300):
        done = subprocess.run(self.command(command), input=given, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {command} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def probe(self, kind):
        """Whether it succeeds; the container runs."""
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.said()}")
        probe = self.container[kind]
        how = probe.get("httpGet") or probe["tcpSocket"]
        ports = {port.get("name"): port["containerPort"] for port in self.container["ports"]}
        port = ports.get(how["port"], how["port"])
        if "tcpSocket" in probe:
            return subprocess.run(["/bin/bash", "-c", f"exec 3<> /dev/tcp/{self.address}/{port}"], capture_output=True).returncode == 0
        try:
            status, _ = self.http(how["path"], how.get("scheme", "HTTP").lower(), port, timeout=probe.get("timeoutSeconds", 1))
        except OSError:
            return False
        return 200 <= status < 400

    def http(self, path, scheme="https", port=8080, timeout=30, headers=()):
        """As a kubelet: without a key, and without verifying the certificate."""
        request = urllib.request.Request(f"{scheme}://{self.address}:{port}{path}", headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=ssl._create_unverified_context()) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self, before_signal=lambda: None):
        """As a kubelet: preStop, SIGTERM, and SIGKILL when the grace is over. Returns the exit status and the seconds."""
        begin, grace = time.time(), self.spec["terminationGracePeriodSeconds"]
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook:
            self.exec(hook["exec"]["command"])
        before_signal()
        self.process.terminate()
        try:
            return self.process.wait(grace - (time.time() - begin)), time.time() - begin
        finally:
            self.close()

    def said(self):
        with open(self.log, errors="replace") as file:
            return "".join(file.readlines()[-40:])

    def connections(self):
        """Of the pod to others: (own port, other address, other port) of those that are open, and the ports that it listens on."""
        rows = [line.split() for name in ("tcp", "tcp6") for line in self.inside("cat", f"/proc/{self.holder.pid}/net/{name}").stdout.splitlines()[1:]]
        pairs = [(row[3], *(address for field in row[1:3] for address in self.decoded(field))) for row in rows]
        return ([(own, other, port) for state, _, own, other, port in pairs if state == "01" and other.startswith(PREFIX)],
                {own for state, _, own, _, _ in pairs if state == "0A"})

    @staticmethod
    def decoded(field):
        address, port = field.split(":")
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(address[-8:]))), int(port, 16)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.holder.poll() is None:
            self.holder.kill()
            self.holder.wait()
            self.holder.stdout.close()
            subprocess.run(["ip", "link", "delete", self.link], capture_output=True)


class MiniCluster:
    """To be made in a network namespace of its own. programs: path by name."""

    def __init__(self, programs, namespace="espalier"):
        self.programs, self.namespace = programs, namespace
        self.folder = tempfile.mkdtemp(prefix="espalier-pods-")
        os.chmod(self.folder, 0o755)
        os.makedirs(os.path.join(self.folder, "pods"))
        self.secrets, self.services, self.sets, self.pods, self.addresses = {}, [], {}, {}, 1
        ip("link", "set", "lo", "up")
        ip("link", "add", "name", "br0", "type", "bridge")
        ip("address", "add", f"{NODE}/24", "dev", "br0")
        ip("link", "set", "br0", "up")
        self.dns = NameServer(NODE, namespace)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for pod in self.pods.values():
            if kind is not None and pod.process is not None:
                print(f"--- {pod.name}\n{pod.said()}")
            pod.close()
        self.dns.close()
        subprocess.run(["ip", "link", "delete", "br0"], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def next_address(self):
        self.addresses += 1
        return self.addresses

    def claim(self, name, group):
        """A volume that outlives pods: its folder belongs to root, and the pod's group may write."""
        path = os.path.join(self.folder, "claims", name)
        if not os.path.exists(path):
            os.makedirs(path)
            os.chown(path, 0, group)
            os.chmod(path, 0o2775)
        return path

    def apply(self, documents):
        for document in documents:
            name = document["metadata"]["name"]
            if document["kind"] == "Secret":
                self.secrets[name] = {key: base64.b64decode(value) for key, value in document.get("data", {}).items()} | {
                    key: value.encode() for key, value in document.get("stringData", {}).items()}
            elif document["kind"] == "Service":
                self.services = [service for service in self.services if service["metadata"]["name"] != name] + [document]
            elif document["kind"] == "StatefulSet":
                self.sets[name] = document
        self.reconcile()

    def reconcile(self):
        """Starts the pods that are wanted and whose secrets are there."""
        for name, document in self.sets.items():
            template = document["spec"]["template"]
            for number in range(document["spec"].get("replicas", 1)):
                if f"{name}-{number}" not in self.pods and self.mountable(template["spec"]):
                    self.create(f"{name}-{number}", template, document["spec"]["serviceName"])

    def mountable(self, spec):
        return all(v["secret"]["secretName"] in self.secrets for v in spec.get("volumes", []) if "secret" in v)

    def create(self, name, template, subdomain=None, before_start=lambda pod: None):
        pod = Pod(self, name, template["spec"])
        pod.labels, pod.subdomain = template["metadata"].get("labels", {}), subdomain
        self.pods[name] = pod
        self.publish()
        before_start(pod)
        pod.start()
        return pod

    def publish(self):
        """Names of services and of their pods: there is no proxy, so a name leads to the pods themselves."""
        names = {}
        for service in self.services:
            name = f"{service['metadata']['name']}.{self.namespace}.{DOMAIN}"
            behind = [pod for pod in self.pods.values() if service["spec"]["selector"].items() <= pod.labels.items()]
            names[name] = [pod.address for pod in behind]
            names |= {f"{pod.name}.{name}": [pod.address] for pod in behind if pod.subdomain == service["metadata"]["name"]}
        self.dns.names = names

    def wait(self, what, condition, seconds=180):
        end = time.time() + seconds
        while not condition():
            for pod in self.pods.values():
                if pod.process.poll() is not None:
                    raise AssertionError(f"{pod.name} ended with {pod.process.returncode} while waiting: {what}\n{pod.said()}")
            if time.time() > end:
                said = "".join(f"\n--- {pod.name}\n{pod.said()}" for pod in self.pods.values())
                raise AssertionError(f"not within {seconds} s: {what}{said}")
            time.sleep(0.1)

    def wait_for(self, name, probe):
        self.wait(f"{probe} of {name}", lambda: name in self.pods and self.pods[name].probe(probe))

    def delete(self, name, before_signal=lambda: None):
        result = self.pods[name].stop(before_signal)
        del self.pods[name]
        return result
