"""TLS on all listening ports: HTTP and gRPC, workers off loopback, client certificates, reloading; invalid certificates
are rejected with the reason."""
import http.client
import http.server
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, PROGRAMS, Cluster, Failed, free_port, write_private  # noqa: E402
from model_files import weights, write_model  # noqa: E402

CNN = os.path.join(DATA, "digits_cnn.onnx")
DIGITS = os.path.join(DATA, "digits.npz")
# Linux connects 0.0.0.0 to itself; to the daemons it is an address like any other off loopback.
ELSEWHERE = "0.0.0.0"
KEY = "the-key-of-all-of-them"


class Certificates:
    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.ca, self.ca_key = self.authority("ca")
        self.other_ca, _ = self.authority("other")
        self.server, self.server_key = self.signed("server", "subjectAltName=IP:127.0.0.1,IP:0.0.0.0,DNS:localhost")
        self.client, self.client_key = self.signed("client", "extendedKeyUsage=clientAuth")

    def path(self, name):
        return os.path.join(self.folder, name)

    def openssl(self, *args):
        done = subprocess.run(["openssl", *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def authority(self, name):
        key, certificate = self.path(f"{name}.key"), self.path(f"{name}.pem")
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                     "-out", certificate, "-days", "2", "-subj", f"/CN={name}")
        return certificate, key

    def signed(self, name, extension, days="2"):
        key, request, certificate = self.path(f"{name}.key"), self.path(f"{name}.csr"), self.path(f"{name}.pem")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out",
                     request, "-subj", f"/CN={name}")
        with open(self.path("extensions"), "w") as file:
            file.write(extension + "\n")
        self.openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.ca_key, "-CAcreateserial", "-out",
                     certificate, "-days", days, "-extfile", self.path("extensions"))
        return certificate, key


class Gateway(http.server.ThreadingHTTPServer):
    """An HTTPS server of somebody else: answers any completion with "hello"; keeps the names that clients asked for
    and the keys that they showed."""

    def __init__(self, certificate, key):
        super().__init__(("127.0.0.1", 0), self.Answer)
        self.names, self.keys = [], []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.sni_callback = lambda socket, name, context: self.names.append(name)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.server.keys.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'data: {"choices": [{"text": "hello", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')

        def log_message(self, *_):
            pass

    def handle_error(self, request, client_address):
        pass  # clients that do not trust us

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


class Secret:
    """A folder as Kubernetes mounts one: its files are links through "..data", which is replaced at once."""
    FILES = ("tls.crt", "tls.key", "ca.crt")

    def __init__(self, folder):
        self.folder, self.versions = folder, 0
        os.mkdir(folder)
        for name in self.FILES:
            os.symlink(os.path.join("..data", name), os.path.join(folder, name))
        self.crt, self.key, self.ca = (os.path.join(folder, name) for name in self.FILES)
        self.flags = [f"--tls-cert={self.crt}", f"--tls-key={self.key}", f"--tls-ca={self.ca}",
                      f"--tls-client-ca={self.ca}"]

    def put(self, *contents):
        self.versions += 1
        version = f"..{self.versions}"
        os.mkdir(os.path.join(self.folder, version))
        for name, text in zip(self.FILES, contents):
            write_private(os.path.join(self.folder, version, name), text)
        os.symlink(version, os.path.join(self.folder, "..new"))
        os.rename(os.path.join(self.folder, "..new"), os.path.join(self.folder, "..data"))


class Rotating:
    """A daemon whose callers show certificates and a key, and which learns new certificates while it runs."""

    def __init__(self, test, folder):
        self.test, self.folder = test, folder
        self.http_port, self.grpc = free_port(), f"127.0.0.1:{free_port()}"
        os.mkdir(folder)
        self.secret = Secret(os.path.join(folder, "secret"))
        self.flags = [*self.secret.flags, test.keys()]
        self.daemon = None

    def start(self):
        self.daemon = self.test.cluster.spawn(
            "espalierd", f"--listen={self.grpc}", f"--http-listen=127.0.0.1:{self.http_port}", "--lease-seconds=3",
            "--measure-seconds=0", f"--data-dir={self.folder}/data", "--open-probes", *self.flags)
        self.log = self.test.cluster.logs[-1]

    def stop(self):
        self.daemon.terminate()
        self.daemon.wait()

    def logged(self):
        with open(self.log) as log:
            return log.read()

    def connection(self, trusted, shown):
        context = ssl.create_default_context(cafile=trusted.ca)
        context.load_cert_chain(shown.client, shown.client_key)
        return http.client.HTTPSConnection("127.0.0.1", self.http_port, context=context, timeout=30)

    def http(self, trusted, shown):
        """Returns whether a new connection with this trust and client certificate is accepted."""
        connection = self.connection(trusted, shown)
        try:
            return health(connection) == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def ask(self, trusted, shown, *args):
        """The command line over gRPC."""
        return self.test.espalier(*args, f"--coordinator={self.grpc}", f"--ca-file={trusted.ca}",
                                  f"--cert-file={shown.client}", f"--key-file={shown.client_key}", "--json",
                                  ESPALIER_TOKEN=KEY)

    def accepts(self, trusted, shown):
        return self.http(trusted, shown), self.ask(trusted, shown, "status").returncode == 0

    def worker(self, pem):
        """The id of the one that is live, if there is one."""
        reply = self.ask(pem, pem, "status")
        workers = json.loads(reply.stdout)["workers"] if reply.returncode == 0 else []
        return next((w["worker_id"] for w in workers if w["state"].upper() in ("IDLE", "BUSY")), None)


def health(connection):
    connection.request("GET", "/health")
    reply = connection.getresponse()
    reply.read()
    return reply.status


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.pem = pem = Certificates(cls.folder.name)
        served = [f"--tls-cert={pem.server}", f"--tls-key={pem.server_key}", f"--tls-ca={pem.ca}"]
        cls.cluster = Cluster(workers=0, daemon_flags=[*served, "--local-workers=1"], ca=pem.ca)
        cls.served = served
        try:
            cls.cluster.wait_for_workers(1)
            write_model(os.path.join(cls.folder.name, "base"), weights(), max_position_embeddings=8192)
            cls.cluster.cli("models", "upload", "base", os.path.join(cls.folder.name, "base"))
            cls.cluster.run("serve", "base", "--name=llm")
        except BaseException:
            cls.cluster.__exit__(True)
            raise

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()
        cls.folder.cleanup()

    def connection(self, ca=None):
        context = ssl.create_default_context(cafile=ca or self.pem.ca)
        host, port = self.cluster.http.split(":")
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
        self.addCleanup(connection.close)
        return connection

    def completion(self, connection, tokens, stream=False):
        body = {"model": "llm", "prompt": "In the beginning", "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def metric(self, pattern):
        text = self.cluster.get("/metrics")[1]
        return sum(float(value) for value in re.findall(rf"^espalier_{pattern} (\S+)$", text, re.M))

    def running(self):
        return self.metric(r"num_requests_running\S*")

    def cancelled(self):
        return self.metric(r'request_success_total\S*finished_reason="cancelled"\S*')

    def test_one_connection_serves_many_requests(self):
        connection, texts = self.connection(), []
        for turn in range(6):
            reply = self.completion(connection, 12, stream=turn % 2 == 1)
            self.assertEqual(reply.status, 200)
            data = reply.read().decode()
            if turn % 2 == 0:
                texts.append(json.loads(data)["choices"][0]["text"])
            else:
                events = [line[6:] for line in data.split("\n") if line.startswith("data: ")]
                self.assertEqual(events[-1], "[DONE]")
                texts.append("".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]))
        self.assertEqual(len(set(texts)), 1, texts)
        self.assertGreater(len(texts[0]), 0)

    def test_concurrent_connections(self):
        answers = []

        def ask():
            answers.append(self.completion(self.connection(), 16, stream=True).read())

        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), 24)
        self.assertTrue(all(answer.endswith(b"data: [DONE]\n\n") for answer in answers))

    def test_client_disconnect_cancels_its_request(self):
        for stream in (True, False):
            connection, before = self.connection(), self.cancelled()
            # So long that it is not over before it was seen.
            ask = (connection, 8000, stream)
            if stream:
                self.completion(*ask).read(64)
            else:
                threading.Thread(target=lambda: self.assertRaises(Exception, self.completion, *ask)).start()
                self.cluster.wait(lambda: self.running() > 0, 30, "the request runs")
            # Closing alone would wait for whoever reads.
            connection.sock.shutdown(socket.SHUT_RDWR)
            self.cluster.wait(lambda: self.cancelled() > before, 30, "it is cancelled")
            self.cluster.wait(lambda: self.running() == 0, 30, "nothing runs")

    def test_plaintext_and_untrusting_clients_are_rejected(self):
        host, port = self.cluster.http.split(":")
        plain = http.client.HTTPConnection(host, int(port), timeout=10)
        with self.assertRaises((http.client.HTTPException, OSError)):
            plain.request("GET", "/health")
            plain.getresponse()
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.connection(self.pem.other_ca).request("GET", "/health")
        env = {k: v for k, v in os.environ.items() if not k.startswith("ESPALIER_")}
        for flags in ([], [f"--ca-file={self.pem.other_ca}"]):
            done = subprocess.run([PROGRAMS["espalier"], "status", f"--coordinator={self.cluster.grpc}", *flags],
                                  env=env, capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn("its TLS certificate is not trusted", done.stderr)
        self.assertEqual(self.cluster.get("/health")[0], 200)

    def espalier(self, *args, **env):
        """Nothing of this cluster in its environment."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ESPALIER_")}
        return subprocess.run([PROGRAMS["espalier"], *args], env={**clean, **env}, capture_output=True, text=True,
                              timeout=120)

    def test_cli_uses_https(self):
        ask = ("generate", "llm", "In the beginning", "--max-tokens=12", "--temperature=0", "--json")
        url, ca = f"--http-address=https://{self.cluster.http}", f"--ca-file={self.pem.ca}"
        texts = []
        for way in ([f"--coordinator={self.cluster.grpc}"], ["--http", url], ["--http", url[:15] + url[23:]]):
            done = self.espalier(*ask, *way, ca)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts.append(json.loads(done.stdout.splitlines()[-1])["done"]["text"])
        self.assertEqual(len(set(texts)), 1, texts)
        done = self.espalier("bench", "llm", "--requests=6", "--concurrency=3", "--max-tokens=4", "--http", url, ca,
                             "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["total_output_tokens"], 24)
        for flags, said in (
                ([url], "is not trusted"),
                ([url, f"--ca-file={self.pem.other_ca}"], "--ca-file=FILE"),
                ([f"--http-address={self.cluster.http}"], f"--http-address=https://{self.cluster.http}"),
                ([f"--http-address=http://{self.cluster.http}", ca], "write https://"),
                ([url, f"--ca-file={self.pem.ca_key}"], "holds no certificate")):
            done = self.espalier(*ask[:-1], "--http", *flags)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(said, done.stderr)

    def test_certificate_for_another_name_gets_no_api_key(self):
        for name, san in (("elsewhere", "DNS:elsewhere.example"), ("here", "DNS:localhost")):
            gateway = Gateway(*self.pem.signed(name, f"subjectAltName={san}"))
            try:
                for host in ("localhost", "127.0.0.1"):
                    done = self.espalier("generate", "any", "x", "--http", f"--ca-file={self.pem.ca}",
                                         f"--http-address=https://{host}:{gateway.server_port}",
                                         ESPALIER_TOKEN="secret")
                    if (name, host) == ("here", "localhost"):
                        self.assertEqual(done.returncode, 0, done.stderr)
                        self.assertIn("hello", done.stdout)
                    else:
                        self.assertEqual(done.returncode, 3, done.stderr)
                        self.assertIn(f"its certificate is not for {host}", done.stderr)
            finally:
                gateway.close()
            # Addresses are not sent as names (RFC 6066).
            self.assertEqual(gateway.names, ["localhost", None])
            self.assertEqual(gateway.keys, ["Bearer secret"] if name == "here" else [])

    def keys(self):
        """Returns a file with KEY, which is required off loopback in addition to TLS."""
        path = os.path.join(self.folder.name, "keys")
        write_private(path, KEY + "\n")
        return f"--api-key-file={path}"

    def test_workers_off_loopback_require_tls(self):
        flags = [*self.served, self.keys()]
        with unittest.mock.patch.dict(os.environ, ESPALIER_TOKEN=KEY), \
                Cluster(workers=0, daemon_flags=flags, ca=self.pem.ca) as cluster:
            for name in ("one", "two"):
                port = free_port()
                cluster.workers.append(cluster.spawn(
                    "espalier-worker", f"--coordinator={cluster.grpc}", f"--name={name}", "--threads=1",
                    f"--listen={ELSEWHERE}:{port}", f"--advertise={ELSEWHERE}:{port}",
                    f"--cache-dir={self.folder.name}/{name}", *flags))
            cluster.wait_for_workers(2)
            # The coordinator reaches them over TLS: what they say to the program comes back.
            job = cluster.wait_for_job(cluster.train(
                f"--onnx={CNN}", f"--dataset={DIGITS}", "--input", "labels=y", "-b", "16", "--steps=3",
                "--only-data-parallel"))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)

    def test_untrusted_and_untrusting_workers_cannot_join(self):
        for flags, said in (
                ([f"--tls-ca={self.pem.other_ca}", *self.served[:2], self.keys()], "no coordinator answers"),
                ([self.keys()], "refusing to communicate without TLS off loopback"),
                ([f"--tls-ca={self.pem.ca}", self.keys()], "refusing to communicate without TLS off loopback")):
            done = subprocess.run([PROGRAMS["espalier-worker"], f"--coordinator={self.cluster.grpc}",
                                   f"--listen={ELSEWHERE}:{free_port()}", *flags], capture_output=True, text=True,
                                  timeout=120)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)

    def test_client_certificates(self):
        flags = [*self.served, f"--tls-client-ca={self.pem.ca}"]
        http_port, grpc = free_port(), f"127.0.0.1:{free_port()}"
        daemon = self.cluster.spawn("espalierd", f"--listen={grpc}", f"--http-listen=127.0.0.1:{http_port}",
                                    f"--data-dir={self.folder.name}/strict", *flags)
        try:
            context = ssl.create_default_context(cafile=self.pem.ca)

            def health():
                connection = http.client.HTTPSConnection("127.0.0.1", http_port, context=context, timeout=30)
                try:
                    connection.request("GET", "/health")
                    return connection.getresponse().status
                finally:
                    connection.close()

            def answers():
                try:
                    return health() == 200
                except ConnectionRefusedError:
                    return False
                except (ssl.SSLError, ConnectionResetError, http.client.HTTPException):
                    return True
            self.cluster.wait(answers, 60, "the daemon listens")
            with self.assertRaises((ssl.SSLError, ConnectionResetError, http.client.HTTPException)):
                health()
            context.load_cert_chain(self.pem.client, self.pem.client_key)
            self.assertEqual(health(), 200)
            status = ["status", f"--coordinator={grpc}"]
            with self.assertRaises(Failed):
                self.cluster.cli(*status)
            own = [f"--cert-file={self.pem.client}", f"--key-file={self.pem.client_key}"]
            self.cluster.cli(*status, *own)
            ask = ["generate", "none", "x", "--http", f"--http-address=https://127.0.0.1:{http_port}",
                   f"--ca-file={self.pem.ca}"]
            self.assertIn("--cert-file=FILE and --key-file=FILE", self.espalier(*ask).stderr)
            self.assertIn("'none' is not served", self.espalier(*ask, *own).stderr)
        finally:
            daemon.terminate()
            daemon.wait()

    def test_certificates_are_reloaded(self):
        old, new = (Certificates(os.path.join(self.folder.name, name)) for name in ("old", "new"))
        running = Rotating(self, os.path.join(self.folder.name, "rotating"))
        read = [[pathlib.Path(path).read_text() for path in (pem.server, pem.server_key, pem.ca)]
                for pem in (old, new)]
        wait = self.cluster.wait
        running.secret.put(*read[0])
        running.start()
        port = free_port()
        worker = self.cluster.spawn("espalier-worker", f"--coordinator={running.grpc}", "--threads=1",
                                    f"--listen={ELSEWHERE}:{port}", f"--advertise={ELSEWHERE}:{port}",
                                    f"--cache-dir={running.folder}/cache", *running.flags)
        try:
            wait(lambda: running.worker(old), 60, "the worker has joined")
            before, kept = running.worker(old), running.connection(old, old)
            self.addCleanup(kept.close)
            self.assertEqual((health(kept), running.accepts(new, new)), (200, (False, False)))

            # A pair that does not belong together, and a certificate that is cut.
            for at, wrong in ((running.secret.key, [read[1][0], *read[0][1:]]),
                              (running.secret.crt, [read[0][0][:200], *read[0][1:]])):
                running.secret.put(*wrong)
                wait(lambda: f"={at}: " in running.logged(), 30, "a warning that names the file")
                self.assertEqual(running.accepts(old, old), (True, True))

            running.secret.put(*read[1])
            wait(lambda: running.accepts(new, new) == (True, True), 30, "who trusts the new authority is accepted")
            for trusted, shown in ((old, old), (new, old), (old, new)):
                self.assertEqual(running.accepts(trusted, shown), (False, False))
            # What was connected before is not harmed.
            self.assertEqual((health(kept), running.worker(new)), (200, before))
            # The coordinator calls its worker anew, who shows the new certificate and wants it.
            submitted = running.ask(new, new, "train", "--detach", f"--onnx={CNN}", f"--dataset={DIGITS}", "--input",
                                    "labels=y", "-b", "16", "--steps=3")
            self.assertEqual(submitted.returncode, 0, submitted.stderr)
            job = json.loads(submitted.stdout)["job_id"]

            def state():
                return json.loads(running.ask(new, new, "jobs", "get", job).stdout)["job"]["state"].upper()
            wait(lambda: state() in ("SUCCEEDED", "FAILED"), 90, "the job ends")
            self.assertEqual(state(), "SUCCEEDED")
            # And the worker, which was started with the old ones, the coordinator.
            running.stop()
            running.start()
            wait(lambda: running.worker(new) not in (None, before), 60, "the worker has joined again")
        finally:
            for process in (worker, running.daemon):
                process.kill()
                process.wait()

    def test_invalid_certificates_are_rejected(self):
        pem = self.pem
        expired, expired_key = pem.signed("expired", "subjectAltName=IP:127.0.0.1", days="-1")
        missing = pem.path("nowhere.pem")
        for flags, said in (
                ([f"--tls-cert={pem.server}"], "--tls-cert and --tls-key go together"),
                ([f"--tls-client-ca={pem.ca}"], "with --tls-cert and --tls-key"),
                ([f"--tls-cert={missing}", f"--tls-key={pem.server_key}"], "nowhere.pem: cannot be read"),
                ([f"--tls-cert={pem.server_key}", f"--tls-key={pem.server_key}"], "holds no certificate"),
                ([f"--tls-cert={pem.server}", f"--tls-key={pem.server}"], "holds no private key"),
                ([f"--tls-cert={pem.server}", f"--tls-key={pem.client_key}"], "is not the key of"),
                ([f"--tls-cert={expired}", f"--tls-key={expired_key}"], "has expired"),
                ([f"--listen={ELSEWHERE}:{free_port()}", *self.served], "--api-key-file")):
            done = subprocess.run([PROGRAMS["espalierd"], f"--data-dir={self.folder.name}/bad",
                                   f"--listen=127.0.0.1:{free_port()}", "--http-listen=", *flags],
                                  capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
