"""A `kubectl` for programs that call it, in front of a MiniCluster: what it does not know, it refuses. Manifests are rendered by
the real one."""
import contextlib
import json
import os
import re
import socket
import socketserver
import sys
import tempfile
import threading
import time


class StandInKubectl:
    """To be used as a context: `path` is the program."""

    def __init__(self, cluster, kustomize):
        self.cluster, self.kustomize, self.calls, self.refused = cluster, kustomize, [], {}
        self.applied = []  # documents
        self.deleted_volumes = []
        self.troubles = ""  # of pods, as the jsonpath of the launch prints them

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        at = os.path.join(self.folder.name, "socket")
        self.path = os.path.join(self.folder.name, "kubectl")
        with open(self.path, "w") as program:
            program.write(f"#!/bin/sh\nexec {sys.executable} {os.path.abspath(__file__)} {at} \"$@\"\n")
        os.chmod(self.path, 0o755)
        answer = self.answer

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                self.wfile.write(json.dumps(answer(**json.loads(self.rfile.readline()))).encode() + b"\n")

        self.server = socketserver.ThreadingUnixStreamServer(at, Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()

    def answer(self, words, given):
        words = [word for word in words if not word.startswith(("--namespace=", "--context="))]
        self.calls.append(words)
        for beginning, error in self.refused.items():
            if " ".join(words).startswith(beginning):
                return {"code": 1, "error": error}
        try:
            return {"code": 0} | self.run(words, given)
        except AssertionError as error:
            return {"code": 1, "error": str(error)}

    def run(self, words, given):
        cluster = self.cluster
        match words:
            case ["apply", "-k", folder]:
                documents = self.kustomize(folder)
                self.applied.append(documents)
                cluster.apply(documents)
            case ["apply", "-f", "-"]:
                cluster.apply([json.loads(given)])
            case ["delete", "-k", folder, "--ignore-not-found"]:
                names = {document["metadata"]["name"] for document in self.kustomize(folder) if document["kind"] == "StatefulSet"}
                for name in names:
                    cluster.sets.pop(name, None)
                for pod in [pod for pod in cluster.pods if pod.rpartition("-")[0] in names]:
                    cluster.delete(pod)
            case ["delete", "secret", name, "--ignore-not-found"]:
                cluster.secrets.pop(name, None)
            case ["delete", "persistentvolumeclaim", name, "--ignore-not-found"]:
                self.deleted_volumes.append(name)
            case ["get", "secret", name]:
                assert name in cluster.secrets, f'Error from server (NotFound): secrets "{name}" not found'
            case ["config", "current-context"]:
                return {"output": "lab\n"}
            case ["config", "view", "--minify", "-o", "jsonpath={..namespace}"]:
                return {"output": ""}
            case ["get", "pods", "--selector", _, "-o", form] if form.startswith("jsonpath={range .items[*]}"):
                return {"output": self.troubles}
            case ["get", "pods", "--selector", _]:
                return {"output": "".join(f"{name}   Running\n" for name in cluster.pods)}
            case ["rollout", "status", name, timeout] if re.fullmatch(r"--timeout=\d+s", timeout):
                if self.troubles:
                    time.sleep(7)  # longer than the launch takes to look why
                    raise AssertionError("error: timed out waiting for the condition")
                document = cluster.sets[name.removeprefix("statefulset/")]
                probes = document["spec"]["template"]["spec"]["containers"][0]
                for number in range(document["spec"]["replicas"]):
                    cluster.wait_for(f"{document['metadata']['name']}-{number}",
                                     "readinessProbe" if "readinessProbe" in probes else "livenessProbe")
            case ["exec", pod, "--", *command]:
                done = cluster.pods[pod].exec(command, given=given, check=False)
                return {"code": done.returncode, "output": done.stdout, "error": done.stderr}
            case ["port-forward", service, *ports] if all(re.fullmatch(r"(\d*:)?\d+", port) for port in ports):
                selector = next(s for s in cluster.services if s["metadata"]["name"] == service.removeprefix("service/"))["spec"]["selector"]
                address = next(pod.address for pod in cluster.pods.values() if selector.items() <= pod.labels.items())
                return {"forward": address, "ports": ports}
            case _:
                raise AssertionError(f"kubectl {words} is not known here")
        return {}


def copy(source, to):
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            to.sendall(piece)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def forward(address, port):
    own, _, remote = port.rpartition(":")
    with socket.create_server(("127.0.0.1", int(own or (0 if ":" in port else remote)))) as server:
        print(f"Forwarding from 127.0.0.1:{server.getsockname()[1]} -> {remote}", flush=True)
        while True:
            near, _ = server.accept()
            far = socket.create_connection((address, int(remote)))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=copy, args=pair, daemon=True).start()


def main(at, *words):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(at)
        given = sys.stdin.read() if "-" in words or "-i" in words else None
        connection.sendall(json.dumps({"words": words, "given": given}).encode() + b"\n")
        answer = json.loads(connection.makefile().readline())
    if "forward" in answer:
        threads = [threading.Thread(target=forward, args=(answer["forward"], port)) for port in answer["ports"]]
        for thread in threads:
            thread.start()
        threads[0].join()
    sys.stdout.write(answer.get("output", ""))
    sys.stderr.write(answer.get("error", ""))
    return answer["code"]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
