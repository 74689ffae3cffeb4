"""Load test of serving: many concurrent streaming clients of completions and chats over HTTP, some over gRPC. Some
disconnect in the middle of an answer, before it starts (queued, or during prefill of an often long prompt), or while
sending the request.

Checks: no answer is lost (every request that was not cancelled ends with its last event), mixed up or wrong (each, greedy
or sampled by seed, equals the answer to the same request alone) or stuck (every read has a time limit); memory stays
flat; disconnected requests are aborted; at the end no request runs and all KV slots are free, the small model's too.
With --stages several steps are in flight when clients disconnect.

    bazel run --config=release //tests/load:serving_load -- --seconds=300 --clients=200
"""
import argparse
import http.client
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from cluster import DATA, PROGRAMS, Cluster  # noqa: E402
from language_models import train  # noqa: E402

PROMPTS = ["In the beginning", "And God said", "And Abraham", "Noah", "the LORD", "Now the serpent", "These are", "x",
           "And it came to pass", "Then Jacob", "Joseph", "behold", "And the waters", "Unto Adam", "Sarah", "Lot"]
STUCK_SECONDS = 120


COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
LONG_PROMPT = 200  # bytes, of 256 positions
BATCH = 128  # max tokens per step: long prompts take several


def genesis():
    with open(os.path.join(DATA, "genesis.txt")) as file:
        return file.read()


def bodies():
    """Returns (path, body) of requests of every kind, whose answers do not depend on concurrent requests."""
    text, out = genesis(), []
    for i, prompt in enumerate(PROMPTS):
        fields = {"model": "big", "max_tokens": 24 + 7 * (i % 8)}
        if i % 3 == 0:
            fields.update(temperature=0)
        elif i % 3 == 1:
            fields.update(temperature=1, seed=i, top_p=0.9)
        else:
            fields.update(temperature=0.8, seed=i, frequency_penalty=0.5, logit_bias={"101": -1})
        if i % 5 == 4:
            fields.update(guided_regex="[A-Z][a-z]{3,9}( [a-z]{2,9}){1,3}", max_tokens=80)
        out.append((COMPLETIONS, {**fields, "prompt": prompt}))
        if i % 2 == 0:
            out.append((CHATS, {**fields, "messages": [{"role": "user", "content": prompt}]}))
        if i % 4 == 1:  # no two share a prefix
            long = text[1000 * i:1000 * i + LONG_PROMPT]
            out.append((COMPLETIONS, {**fields, "prompt": long}))
    return out


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {"finished": 0, "chats": 0, "over_grpc": 0, "cancelled": 0, "left_unanswered": 0,
                       "left_sending": 0, "refused": 0, "tokens": 0}
        self.faults = []

    def add(self, **counts):
        with self.lock:
            for name, count in counts.items():
                self.counts[name] += count

    def fault(self, text):
        with self.lock:
            self.faults.append(text)


def post(address, path, body):
    connection = http.client.HTTPConnection(address, timeout=STUCK_SECONDS)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def answer_alone(address, path, body):
    connection, reply = post(address, path, body)
    choice = json.loads(reply.read())["choices"][0]
    connection.close()
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"]


def events(reply):
    for line in reply:
        if line.startswith(b"data: "):
            yield line[6:].strip()


def one_request(address, path, body, expected, cancel_after, tally):
    """Streams one answer; disconnects after `cancel_after` events, if given."""
    connection, reply = post(address, path, {**body, "stream": True})
    asked = body.get("prompt") or body["messages"]
    try:
        if reply.status == 429:
            wait = int(reply.getheader("Retry-After"))
            reply.read()
            tally.add(refused=1)
            time.sleep(wait * random.random())
            return
        if reply.status != 200:
            tally.fault(f"status {reply.status}: {reply.read()[:200]}")
            return
        text, reason, number = "", None, 0
        for number, event in enumerate(events(reply)):
            if event == b"[DONE]":
                if text != expected:
                    tally.fault(f"{asked!r} gave {text!r}, alone {expected!r}")
                if reason is None:
                    tally.fault(f"{asked!r}: no finish_reason before the end")
                tally.add(finished=1, chats=path == CHATS)
                return
            choice = json.loads(event)["choices"][0]
            text += choice["text"] if path == COMPLETIONS else choice["delta"].get("content") or ""
            reason = reason or choice["finish_reason"]
            tally.add(tokens=1)
            if not expected.startswith(text):
                tally.fault(f"{asked!r}: {text!r} is no beginning of {expected!r}")
                return
            if cancel_after is not None and number >= cancel_after:
                tally.add(cancelled=1)
                return
        tally.fault(f"{asked!r}: the stream ended after {number} events without [DONE]")
    finally:
        connection.close()


def leave_early(address, path, body, part, patience, abruptly, tally):
    """Sends a fraction `part` of a request, waits `patience` seconds and disconnects, answered or not."""
    content = json.dumps({**body, "stream": True}).encode()
    request = (f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(content)}\r\n\r\n").encode() + content
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=STUCK_SECONDS) as connection:
        connection.sendall(request[:int(len(request) * part)])
        answered = bool(select.select([connection], [], [], patience)[0])
        if part < 1:
            tally.add(left_sending=1)
        elif not answered:
            tally.add(left_unanswered=1)
        elif connection.recv(20).startswith(b"HTTP/1.1 429"):
            tally.add(refused=1)
        if abruptly:  # a reset instead of an end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def client(address, requests, end, seed, tally):
    chance, text = random.Random(seed), genesis()
    while time.time() < end:
        path, body, expected = chance.choice(requests)
        kind = chance.random()
        try:
            if kind < 0.05:
                part, patience = chance.uniform(0.1, 0.95), 0.2 * chance.random()
                leave_early(address, path, body, part, patience, chance.random() < 0.5, tally)
            elif kind < 0.15:
                if chance.random() < 0.6:  # with a unique prompt
                    at = chance.randrange(len(text) - LONG_PROMPT)
                    path, body = COMPLETIONS, {"model": "big", "prompt": text[at:at + LONG_PROMPT], "max_tokens": 50}
                leave_early(address, path, body, 1, chance.expovariate(3), chance.random() < 0.5, tally)
            else:
                cancel_after = chance.randrange(12) if kind < 0.4 else None
                one_request(address, path, body, expected, cancel_after, tally)
        except Exception as error:  # a client thread reports any error
            tally.fault(f"{type(error).__name__}: {error}")


def grpc_client(address, home, requests, end, seed, tally):
    """Runs the command line client; kills some while they wait or receive."""
    chance = random.Random(seed)
    requests = [(body, expected) for path, body, expected in requests
                if path == COMPLETIONS and "guided_regex" not in body and "logit_bias" not in body]
    while time.time() < end:
        body, expected = chance.choice(requests)
        flags = [f"--{name.replace('_', '-')}={body[name]}" for name in ("max_tokens", "temperature", "seed", "top_p")
                 if name in body]
        process = subprocess.Popen([PROGRAMS["espalier"], "generate", "big", body["prompt"], "--json", *flags,
                                    f"--coordinator={address}", f"--home={home}"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        leaves = chance.random() < 0.3
        try:
            out, error = process.communicate(timeout=chance.uniform(0.1, 3) if leaves else STUCK_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
            if leaves:
                tally.add(cancelled=1)
            else:
                tally.fault(f"gRPC: {body['prompt']!r} got no answer in {STUCK_SECONDS} s")
            continue
        if process.returncode != 0:
            if "requests are waiting" in error + out:
                tally.add(refused=1)
                time.sleep(chance.random())
            else:
                tally.fault(f"gRPC: exit {process.returncode}: {(error + out)[:300]}")
            continue
        *pieces, last = [json.loads(line) for line in out.splitlines()]
        text = "".join(piece["text"] for piece in pieces)
        if text != expected or last["done"]["text"] != expected:
            tally.fault(f"gRPC: {body['prompt']!r} gave {text!r}, over HTTP alone {expected!r}")
        tally.add(finished=1, over_grpc=1, tokens=len(pieces))


def resident(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024


def metric(cluster, name, label=""):
    for line in cluster.get("/metrics")[1].splitlines():
        if line.startswith(f"espalier_{name}{{") and label in line:
            return float(line.split()[-1])
    raise AssertionError(f"no metric {name} {label}")


def nothing_is_left(cluster):
    return all(metric(cluster, name) == 0
               for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio",
                            "spec_decode_ssm_kv_cache_usage_ratio"))


def judge(counts, faults, stuck, given_up, clients):
    assert not faults and stuck == 0
    assert counts["finished"] > clients / 4, "hardly anything was answered"
    for kind in ("chats", "over_grpc", "cancelled", "left_unanswered", "left_sending"):
        assert counts[kind] > 0, f"no {kind}"
    # Abandoned requests: some may have just ended; the rest must not have run to completion.
    left = counts["cancelled"] + counts["left_unanswered"]
    assert given_up >= 0.9 * left, f"{left} clients went away, {given_up} requests were given up"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--grpc-clients", type=int, default=4, help="additional gRPC clients, each a process")
    parser.add_argument("--tuned", action="store_true",
                        help="trees chosen at each step, n-gram drafts among them, instead of trees of one shape")
    parser.add_argument("--stages", type=int, default=0, help="of the model, on as many workers; 0: in the daemon")
    options = parser.parse_args()
    where = [f"--pipeline-parallel={options.stages}"] if options.stages else []
    with Cluster(workers=max(1, options.stages)) as cluster:
        train(cluster, "big", 32, 2, 60)
        train(cluster, "small", 16, 1, 60)
        cluster.run("serve", "big", "--ssm=small", *([] if options.tuned else ["--expansion=1,1,2,1"]), "--max-queue=150",
                    "--max-requests-per-batch=32", f"--max-tokens-per-batch={BATCH}", *where)
        requests = [(path, body, answer_alone(cluster.http, path, body)) for path, body in bodies()]
        tally = Tally()
        start = time.time()
        end = start + options.seconds
        threads = [threading.Thread(target=client, args=(cluster.http, requests, end, i, tally))
                   for i in range(options.clients)]
        threads += [threading.Thread(target=grpc_client, args=(cluster.grpc, cluster.folder, requests, end, i, tally))
                    for i in range(options.grpc_clients)]
        for thread in threads:
            thread.start()
        # Compares memory from when all clients have been running for a while.
        memory = []
        while time.time() < start + options.seconds:
            time.sleep(options.seconds / 20)
            memory.append(resident(cluster.daemon))
        for thread in threads:
            thread.join(STUCK_SECONDS + 30)
        stuck = sum(thread.is_alive() for thread in threads)
        cluster.wait(lambda: nothing_is_left(cluster), 30, "all slots are back")
        given_up = int(metric(cluster, "request_success_total", 'finished_reason="cancelled"'))
        # Prompts whose clients disconnected during prefill, and preempted requests.
        half_done = metric(cluster, "prompt_tokens_computed_total") - metric(
            cluster, "prompt_tokens_by_source_total", "local_compute")
        early, late = max(memory[4:8]), max(memory[-4:])
        result = {"seconds": round(time.time() - start, 1), "clients": options.clients, **tally.counts,
                  "given_up": given_up, "prompt_tokens_given_up": int(half_done),
                  "preemptions": int(metric(cluster, "num_preemptions_total")), "stuck": stuck,
                  "faults": len(tally.faults), "rss_mib_early": early, "rss_mib_late": late}
        print(json.dumps(result))
        for fault in tally.faults[:10]:
            print(fault)
        judge(tally.counts, tally.faults, stuck, given_up, options.clients)
        assert half_done > 0 or options.seconds < 15, "nobody left while a prompt was processed"
        assert late <= early * 1.1 + 16, f"memory grew from {early} to {late} MiB"


if __name__ == "__main__":
    main()
