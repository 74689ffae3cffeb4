"""An HTTP proxy in front of a server, which does to chosen requests what networks and S3 do.

PUT /__faults with a list of rules as JSON sets them; GET /__requests returns "METHOD PATH STATUS" of each request so far, and
DELETE /__requests forgets them. A rule: {"method": "PUT", "match": REGEX of path and query, "skip": 0, "count": 1, "do": ...}; the
first rule that matches and is not used up is taken. What it does:
  "status": answers "status" with S3's error "code", without asking the server
  "late error": asks the server nothing, answers 200 and an error "code" in the body
  "empty": asks the server nothing, answers 200 without a body
  "lose answer": asks the server, then closes the connection
  "reset": closes the connection at once
  "truncate": passes the half of the body and closes the connection
  "stall": waits "seconds", then closes the connection
  "slow": waits "seconds", then answers as usual
Requests that write are passed one after another, as moto does not check a condition and write in one step.
"""
import contextlib
import http.client
import json
import re
import socket
import ssl
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP = {"connection", "keep-alive", "transfer-encoding", "server", "date"}


class Rules:
    def __init__(self):
        self.lock = threading.Lock()
        self.writing = threading.Lock()
        self.rules = []
        self.requests = []

    def set(self, rules):
        with self.lock:
            self.rules = [{"method": "", "match": "", "skip": 0, "count": 1, **rule} for rule in rules]

    def take(self, method, path):
        with self.lock:
            for rule in self.rules:
                if rule["method"] not in ("", method) or not re.search(rule["match"], path) or rule["count"] == 0:
                    continue
                if rule["skip"] > 0:
                    rule["skip"] -= 1
                    continue
                rule["count"] -= 1
                return rule
        return None

    def saw(self, text):
        with self.lock:
            self.requests.append(text)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self):
        # A RST instead of an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def error(self, status, code):
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
        self.answer(status, [("Content-Type", "application/xml")], text.encode())

    def control(self, body):
        rules = self.server.rules
        if self.path == "/__faults":
            rules.set(json.loads(body))
        elif self.command == "DELETE":
            with rules.lock:
                rules.requests.clear()
        with rules.lock:
            self.answer(200, [], "\n".join(rules.requests).encode())

    def forward(self, body):
        connection = http.client.HTTPConnection(*self.server.target, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            connection.request(self.command, self.path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
            return reply.status, [(name, value) for name, value in reply.getheaders() if name.lower() not in HOP], content
        finally:
            connection.close()

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/__"):
            self.control(body)
            return
        rules = self.server.rules
        rule = rules.take(self.command, self.path) or {"do": ""}
        do = rule["do"]
        if do == "status":
            rules.saw(f"{self.command} {self.path} {rule['status']}")
            self.error(rule["status"], rule.get("code", ""))
            return
        if do == "empty":
            rules.saw(f"{self.command} {self.path} empty")
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if do == "late error":
            rules.saw(f"{self.command} {self.path} late")
            self.error(200, rule["code"])
            return
        if do in ("slow", "stall"):
            time.sleep(rule["seconds"])
        if do in ("reset", "stall"):
            rules.saw(f"{self.command} {self.path} {do}")
            self.reset()
            return
        with self.server.rules.writing if self.command == "PUT" else contextlib.nullcontext():
            status, headers, content = self.forward(body)
        rules.saw(f"{self.command} {self.path} {status}")
        if do == "lose answer":
            self.reset()
        elif do == "truncate":
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.answer(status, headers, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that is killed, or gives up, while it is answered


class FaultProxy:
    """Listens on a free port of `host` while it is entered."""

    def __init__(self, target, certificate=None, host="127.0.0.1"):
        """certificate: file with a certificate and its key, to be reached over TLS."""
        self.server = Server((host, 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.target = target
        self.server.rules = self.rules = Rules()
        self.url = f"{'https' if certificate else 'http'}://{host}:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
