"""Workers and people that get access by a token, on hosts of their own: what each token lets them do, why it is refused, and
what somebody in the middle, or somebody who has captured a request, gets."""
import base64
import glob
import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402
from cluster import DATA, PROGRAMS, ROOT, Cluster, Failed, free_port, read, write_private  # noqa: E402
from espalier.v1 import access_pb2  # noqa: E402
from grpc_calls import Calls, error_of, use  # noqa: E402
from hosts import COORDINATOR, Hosts, enter  # noqa: E402

use(access_pb2)
REASON = enter()
FIRST, SECOND, THIRD = "10.77.0.2", "10.77.0.3", "10.77.0.4"
JOB = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", "--lr=3e-3", "--seed=5",
       "--only-data-parallel"]


class AutoTls(Cluster):
    """A coordinator with --tls=auto, which the command line finds as the daemon says."""

    def home(self):
        return f"{self.folder}/data/tls/client"

    def start_daemon(self, until="/ready"):
        super().start_daemon(until)
        self.wait(lambda: os.listdir(self.home()), 30, "the daemon writes where it is")  # after it is ready

    def cli(self, *args, check=True, timeout=300, home=None, prefix=()):
        env = {name: value for name, value in os.environ.items() if not name.startswith("ESPALIER_")}
        done = subprocess.run([*prefix, PROGRAMS["espalier"], *args], env=dict(env, ESPALIER_HOME=home or self.home()),
                              capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise Failed(done.returncode, done.stdout, done.stderr)
        return done

    def wait_for_workers(self, count):
        if count:  # an operator's own keys are not in home()
            super().wait_for_workers(count)

    def get(self, path, token=None):
        self.ca = f"{self.folder}/data/tls/ca/current/ca.pem"
        return super().get(path, token)


class Token:
    """The parts of a token's text, which a test may change."""

    def __init__(self, text):
        _, self.id, packed = text.split(".")
        body = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))[:-4]
        self.secret, self.ca, self.addresses = body[:16], body[16:48], body[48:]

    def text(self):
        body = self.secret + self.ca + self.addresses
        check = hashlib.sha256(self.id.encode() + b"." + body).digest()[:4]
        return f"esp1.{self.id}." + base64.urlsafe_b64encode(body + check).decode().rstrip("=")


class Impostor:
    """Answers on the coordinator's host with a certificate of its own, and keeps what it is told."""

    def __init__(self, folder, chain=""):
        self.heard = b""
        self.files = [os.path.join(folder, name) for name in ("impostor.pem", "impostor.key")]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        self.files[1], "-out", self.files[0], "-days", "2", "-subj", "/CN=coordinator", "-addext",
                        f"subjectAltName=IP:{COORDINATOR}"], check=True, capture_output=True)
        with open(self.files[0], "a") as file:
            file.write(chain)
        self.socket = socket.create_server((COORDINATOR, 0))
        self.address = f"{COORDINATOR}:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.files)
        context.set_alpn_protocols(["h2"])
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as tls:
                    tls.settimeout(5)
                    self.heard += tls.recv(1 << 16)
            except OSError:
                pass

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()


@unittest.skipIf(REASON, REASON)
class TokensTest(unittest.TestCase):
    def setUp(self):
        self.hosts = Hosts(3)
        self.addCleanup(self.hosts.close)

    def start(self, *flags):
        self.cluster = self.enterContext(AutoTls(workers=0, daemon_flags=["--tls=auto", "--open-probes", *flags],
                                                 host=COORDINATOR))

    def create(self, *flags):
        return self.cluster.cli("token", "create", *flags).stdout.strip()

    def tokens(self):
        return {token["id"]: token for token in self.cluster.run("token", "list")["tokens"]}

    def worker(self, host, token, *flags):
        """One that joins with nothing but the token; None: with what it has kept."""
        env = dict(os.environ, ESPALIER_JOIN_TOKEN=token or "")
        path = os.path.join(self.cluster.folder, f"espalier-worker.{len(self.cluster.logs)}.log")
        self.cluster.logs.append(path)
        with open(path, "w") as log:
            process = subprocess.Popen(
                [*self.hosts.prefix(host), PROGRAMS["espalier-worker"], f"--name=on-{host}", "--threads=1",
                 f"--cache-dir={self.cluster.folder}/cache-{host}", *flags], stdout=log, stderr=log, env=env)
        self.cluster.workers.append(process)
        return process

    def refusal(self, *arguments):
        """What a worker says that ends because it may not join."""
        process = self.worker(*arguments)
        log = self.cluster.logs[-1]
        self.assertEqual(process.wait(timeout=60), 1, read(log))
        return read(log)

    def live(self):
        return {worker["address"] for worker in self.cluster.run("status").get("workers", [])
                if worker["state"].upper() in ("IDLE", "BUSY")}

    def hears(self, address, identity):
        """The first bytes that a gRPC server sends to who shows this identity."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if identity:
            context.load_cert_chain(f"{identity}/certificate.pem", f"{identity}/key.pem")
        host, port = address.split(":")
        try:
            with context.wrap_socket(socket.create_connection((host, int(port)), timeout=10)) as tls:
                return tls.recv(1)
        except (ssl.SSLError, ConnectionError):
            return b""

    def test_two_hosts_train_with_nothing_but_a_token(self):
        self.start()
        token = self.create("--role=worker", "--uses=2")
        self.assertRegex(token, r"^esp1\.[0-9a-f]{12}\.[\w-]+$")
        for host in (FIRST, SECOND):
            self.worker(host, token)
        self.cluster.wait_for_workers(2)
        addresses = self.live()
        # Each on the interface that reaches the coordinator.
        self.assertEqual({address.split(":")[0] for address in addresses}, {FIRST, SECOND})
        job = self.cluster.train(*JOB, "--steps=20", "--checkpoint-every=10")
        done = self.cluster.wait_for_job(job)
        self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
        self.assertEqual(len(self.cluster.losses(job)), 20)
        self.assertIn("is used up: 2 workers have joined", self.refusal(THIRD, token))
        mine = self.tokens()[Token(token).id]
        self.assertEqual((mine["state"], mine["uses_left"], mine["uses"]), ("used up", 0, 2))
        # A worker's port takes the coordinator's connections only.
        tls = f"{self.cluster.folder}/data/tls"
        own = glob.glob(f"{tls}/coordinator*/current")[0]
        kept = glob.glob(f"{self.cluster.folder}/cache-{SECOND}/espalier-identities-*/*/0/current")[0]
        address = next(address for address in addresses if address.startswith(FIRST))
        self.assertNotEqual(self.hears(address, own), b"")
        self.assertEqual(self.hears(address, None), b"")
        self.assertEqual(self.hears(address, kept), b"")  # another worker's
        # A worker comes back without a token, and after the coordinator did.
        self.cluster.kill(self.cluster.workers[0])
        self.cluster.daemon.terminate()
        self.cluster.daemon.wait()
        self.cluster.start_daemon()
        self.worker(FIRST, None, f"--coordinator={self.cluster.grpc}")
        self.cluster.wait_for_workers(2)
        self.assertIn("--join=TOKEN", self.refusal(THIRD, None, f"--coordinator={self.cluster.grpc}"))
        self.assertEqual(self.tokens()[Token(token).id]["uses_left"], 0)

    def test_the_commands_of_the_page_on_several_hosts(self):
        page = read(os.path.join(ROOT, "docs", "operations", "several-hosts.md"))
        block = re.search(r"runs these commands\. -->\n```sh\n(.*?)```", page, re.S)[1]
        up, create, join, train = (line.split("#")[0].strip() for line in block.strip().splitlines())
        folder = self.enterContext(tempfile.TemporaryDirectory())
        shutil.copy(os.path.join(DATA, "genesis.txt"), os.path.join(folder, "text.txt"))
        env = {name: value for name, value in os.environ.items() if not name.startswith("ESPALIER_")}
        env.update(HOME=folder, PATH=":".join(os.path.dirname(path) for path in PROGRAMS.values()) + ":" + env["PATH"])
        up = up.replace("10.0.0.1:7070", f"{COORDINATOR}:{free_port()}").replace("10.0.0.1:8080", f"{COORDINATOR}:{free_port()}")

        def shell(command):
            done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, (command, done.stdout, done.stderr))
            return done.stdout

        shell(up)
        self.addCleanup(shell, "espalier down")
        token = shell(create).strip()
        for host in (FIRST, SECOND):
            with open(os.path.join(folder, host), "w") as log:
                worker = subprocess.Popen([*self.hosts.prefix(host), *join.replace("esp1.…", token).split(), "--threads=1",
                                           f"--cache-dir={folder}/cache-{host}"], env=env, stdout=log, stderr=log)
            self.addCleanup(worker.wait)
            self.addCleanup(worker.terminate)
        self.assertIn("SUCCEEDED", shell(train).upper())
        shown = shell("espalier status")
        for host in (FIRST, SECOND):
            self.assertIn(host, shown)

    def test_a_token_is_refused_with_its_reason(self):
        self.start()
        token = self.create("--role=worker", "--ttl=1s")
        time.sleep(1.1)
        self.assertIn("expired at", self.refusal(FIRST, token))
        token = self.create("--role=worker", "--uses=3")
        self.cluster.run("token", "revoke", Token(token).id)
        self.assertIn("was revoked", self.refusal(FIRST, token))
        token = self.create("--role=worker", "--uses=3")
        unknown, guessed = Token(token), Token(token)
        unknown.id, guessed.secret = "0123456789ab", bytes(16)
        for other in (unknown, guessed):
            self.assertIn("is unknown here", self.refusal(FIRST, other.text()))
        self.assertIn("was not copied completely", self.refusal(FIRST, token[:-3]))
        self.assertIn("is for clients", self.refusal(FIRST, self.create("--role=train")))
        # Of another CA: somebody in the middle, or a coordinator that was set up anew.
        other = Token(token)
        other.ca = bytes(32)
        self.assertIn("is not the coordinator of this token", self.refusal(FIRST, other.text()))
        self.assertEqual(self.tokens()[Token(token).id]["uses_left"], 3)
        self.assertEqual(self.live(), set())

    def test_a_worker_that_was_refused_starts_again_with_the_same_use(self):
        self.start()
        token = self.create("--role=worker", "--uses=1")
        self.assertIn("cannot reach this worker", self.refusal(FIRST, token, "--advertise=10.77.0.99:4242"))
        # Without the certificate that it got, too.
        os.remove(glob.glob(f"{self.cluster.folder}/cache-{FIRST}/espalier-identities-*/*/0/current")[0])
        self.worker(FIRST, token)
        self.cluster.wait_for_workers(1)
        self.assertIn("is used up", self.refusal(SECOND, token))

    def test_somebody_in_the_middle_hears_nothing(self):
        self.start()
        token = Token(self.create("--role=worker", "--uses=3"))
        for chain in ("", read(f"{self.cluster.folder}/data/tls/ca/current/ca.pem")):
            impostor = Impostor(self.cluster.folder, chain)
            try:
                token.addresses = impostor.address.encode()
                self.assertIn("Somebody may be in the middle", self.refusal(FIRST, token.text()))
                login = self.cluster.cli("login", token.text(), check=False, home=f"{self.cluster.folder}/middle")
                self.assertEqual(login.returncode, 1)
                self.assertIn("Somebody may be in the middle", login.stderr)
            finally:
                impostor.close()
            self.assertEqual(impostor.heard, b"")

    def request(self, name):
        """A certificate request (PEM) of a new key."""
        key, csr = (os.path.join(self.cluster.folder, f"{name}.{end}") for end in ("key", "csr"))
        subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                        "-out", csr, "-subj", "/CN=worker", "-addext", f"subjectAltName=IP:{FIRST}"], check=True, capture_output=True)
        return read(csr)

    def test_a_captured_join_cannot_be_used_again(self):
        self.start()
        token = Token(self.create("--role=worker", "--uses=2"))
        credentials = grpc.ssl_channel_credentials(read(self.cluster.ca).encode())
        with Calls(self.cluster.grpc, "Access", credentials=credentials) as calls:
            captured = access_pb2.IssueCertificateRequest(token_id=token.id, secret=token.secret.hex(), idempotency_key="the-key-of-this-request",
                                                          certificate_request=self.request("one"))
            first, again = calls.IssueCertificate(captured), calls.IssueCertificate(captured)
            self.assertEqual(self.tokens()[token.id]["uses_left"], 1)
            # Only who has the key has a use for the answer.
            self.assertIn("BEGIN CERTIFICATE", first.certificate_chain)
            self.assertNotEqual(first.certificate_chain, again.certificate_chain)
            changed = access_pb2.IssueCertificateRequest()
            changed.CopyFrom(captured)
            changed.certificate_request = self.request("two")
            renamed = access_pb2.IssueCertificateRequest()
            renamed.CopyFrom(captured)
            renamed.idempotency_key = "another-key-of-this-request"
            for request in (changed, renamed):
                code, why = error_of(lambda: calls.IssueCertificate(request))
                self.assertEqual(code, grpc.StatusCode.PERMISSION_DENIED)
                self.assertIn("replayed", why)
            self.assertEqual(self.tokens()[token.id]["uses_left"], 1)
            # With a token one is no worker yet, and a request without one is refused.
            renew = access_pb2.RenewCertificateRequest(certificate_request=captured.certificate_request)
            self.assertEqual(error_of(lambda: calls.RenewCertificate(renew))[0], grpc.StatusCode.UNAUTHENTICATED)
            self.assertEqual(error_of(lambda: calls.ListTokens(access_pb2.ListTokensRequest()))[0], grpc.StatusCode.UNAUTHENTICATED)
            captured.secret = "0" * 32
            self.assertEqual(error_of(lambda: calls.IssueCertificate(captured))[0], grpc.StatusCode.UNAUTHENTICATED)
        # The certificate makes a worker, and nothing else.
        shown = grpc.ssl_channel_credentials(read(self.cluster.ca).encode(), read(f"{self.cluster.folder}/one.key").encode(),
                                             first.certificate_chain.encode())
        with Calls(self.cluster.grpc, "Access", credentials=shown) as calls:
            self.assertEqual(error_of(lambda: calls.ListTokens(access_pb2.ListTokensRequest()))[0], grpc.StatusCode.PERMISSION_DENIED)
            self.assertIn("BEGIN CERTIFICATE", calls.RenewCertificate(renew).certificate_chain)

    def test_certificates_are_renewed_until_the_token_is_revoked(self):
        life = 15.0  # renewed after 10 s, noticed within 1 s, used within 2 more
        self.start(f"--worker-certificate-hours={life / 3600}")
        token = self.create("--role=worker", "--ttl=10s")  # it joins by then, and outlives the token
        self.worker(FIRST, token)
        log = self.cluster.logs[-1]
        self.cluster.wait_for_workers(1)
        before = self.cluster.run("status")["workers"][0]["worker_id"]
        end = time.time() + 1.6 * life
        while time.time() < end:
            self.assertEqual(len(self.live()), 1)
            time.sleep(0.5)
        self.assertEqual(self.cluster.run("status")["workers"][0]["worker_id"], before)
        self.assertGreaterEqual(len(re.findall("is valid until", read(log))), 3)
        self.assertNotIn("cannot join", read(log))
        said = self.cluster.cli("token", "revoke", Token(token).id).stdout
        self.assertIn("stay until their certificates end", said)
        self.cluster.wait(lambda: not self.live(), life + 10, "the worker is out")
        self.assertRegex(read(log), "is valid until .* is not renewed: .*was revoked")

    def test_a_person_on_another_host_logs_in_with_one_command(self):
        self.start()
        token = self.create("--role=train,infer", "--owner=alice", "--ttl=1h")
        home, on = f"{self.cluster.folder}/alice", self.hosts.prefix(SECOND)

        def alice(*args):
            return self.cluster.cli(*args, check=False, home=home, prefix=on)

        self.assertIn(f"logged in to {self.cluster.grpc}", alice("login", token).stdout)
        self.assertEqual(alice("status").returncode, 0)
        self.assertEqual(alice("jobs").returncode, 0)
        refused = alice("token", "list")
        self.assertIn("needs a key with one of the roles: admin", refused.stderr)
        self.assertEqual(os.stat(f"{home}/login/current/token").st_mode & 0o777, 0o600)
        # HTTP takes it for a key, too.
        with open(self.cluster.ca) as file:
            self.assertIn("BEGIN CERTIFICATE", file.read())
        self.assertEqual(self.cluster.get("/v1/models", token=token)[0], 200)
        self.assertEqual(self.tokens()[Token(token).id]["owner"], "alice")
        self.assertRegex(self.cluster.cli("token", "list").stdout, r"  expires, \S+")  # in which zone
        self.assertNotEqual(self.tokens()[Token(token).id]["last_used_unix_ms"], 0)
        # The key is for that coordinator only.
        elsewhere = alice("status", f"--coordinator={COORDINATOR}:{free_port()}")
        self.assertEqual(elsewhere.returncode, 3)
        self.cluster.run("token", "revoke", Token(token).id)
        gone = alice("status")
        self.assertEqual(gone.returncode, 1)
        self.assertIn("was revoked; ask an admin for a new one (`espalier token create --role=train,infer`), then `espalier login`", gone.stderr)
        out = alice("logout")
        self.assertIn(f"logged out of {self.cluster.grpc}", out.stdout)
        self.assertEqual(os.listdir(home), [])
        self.assertEqual(alice("status").returncode, 3)
        self.assertEqual(alice("logout").returncode, 4)
        self.assertEqual(self.cluster.get("/v1/models", token=token)[0], 401)

    def test_keys_of_an_operator_still_count(self):
        keys = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "keys")
        write_private(keys, "the-key-of-the-operators\nthe-key-of-prometheus role=monitor\n")
        self.start(f"--api-key-file={keys}")
        self.assertFalse(os.path.exists(f"{self.cluster.folder}/data/tls/admin.key"))
        self.assertEqual(self.cluster.get("/v1/models", token="the-key-of-the-operators")[0], 200)
        self.assertEqual(self.cluster.get("/v1/models", token="the-key-of-nobody-here")[0], 401)
        self.assertEqual(self.cluster.get("/metrics", token="the-key-of-prometheus")[0], 200)
        self.assertEqual(self.cluster.cli("status", check=False).returncode, 1)

    def test_a_coordinator_that_forgets_tls_does_not_start(self):
        self.start()
        self.cluster.kill(self.cluster.daemon)
        flags = [f"--data-dir={self.cluster.folder}/data", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]
        bare = self.cluster.spawn("espalierd", *flags)
        self.assertEqual(bare.wait(timeout=60), 1)
        self.assertIn("give --tls=auto again, and the same --listen", read(self.cluster.logs[-1]))


if __name__ == "__main__":
    unittest.main()
