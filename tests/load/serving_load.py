"""Many streaming clients at once, some of which go away in the middle.

What must hold: no answer is lost (every request that was not cancelled ends with its last event), none is mixed with
another's or wrong (each is compared, greedy or sampled by seed, with the answer that the same request got alone), none
is stuck (a time limit on every read), memory stays flat, and in the end no request runs and every KV slot is back. With
--stages clients leave in the middle of steps, of which several run at once.

    bazel run --config=release //tests/load:serving_load -- --seconds=300 --clients=200
"""
import argparse
import http.client
import json
import os
import random
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from cluster import Cluster  # noqa: E402
from language_models import train  # noqa: E402

PROMPTS = ["In the beginning", "And God said", "And Abraham", "Noah", "the LORD", "Now the serpent", "These are", "x",
           "And it came to pass", "Then Jacob", "Joseph", "behold", "And the waters", "Unto Adam", "Sarah", "Lot"]
STUCK_SECONDS = 120


def bodies():
    """Requests of every kind whose answers do not depend on their company."""
    out = []
    for i, prompt in enumerate(PROMPTS):
        fields = {"model": "big", "prompt": prompt, "max_tokens": 24 + 7 * (i % 8)}
        if i % 3 == 0:
            fields.update(temperature=0)
        elif i % 3 == 1:
            fields.update(temperature=1, seed=i, top_p=0.9)
        else:
            fields.update(temperature=0.8, seed=i, frequency_penalty=0.5, logit_bias={"101": -1})
        if i % 5 == 4:
            fields.update(guided_regex="[A-Z][a-z]{3,9}( [a-z]{2,9}){1,3}", max_tokens=80)
        out.append(fields)
    return out


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {"finished": 0, "cancelled": 0, "refused": 0, "tokens": 0}
        self.faults = []

    def add(self, **counts):
        with self.lock:
            for name, count in counts.items():
                self.counts[name] += count

    def fault(self, text):
        with self.lock:
            self.faults.append(text)


def post(address, body):
    connection = http.client.HTTPConnection(address, timeout=STUCK_SECONDS)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def events(reply):
    for line in reply:
        if line.startswith(b"data: "):
            yield line[6:].strip()


def one_request(address, body, expected, cancel_after, tally):
    """Streams one answer; leaves after `cancel_after` events, if that is not None."""
    connection, reply = post(address, {**body, "stream": True})
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
                    tally.fault(f"{body['prompt']!r} gave {text!r}, alone {expected!r}")
                if reason is None:
                    tally.fault(f"{body['prompt']!r}: no finish_reason before the end")
                tally.add(finished=1)
                return
            choice = json.loads(event)["choices"][0]
            text += choice["text"]
            reason = reason or choice["finish_reason"]
            tally.add(tokens=1)
            if not expected.startswith(text):
                tally.fault(f"{body['prompt']!r}: {text!r} is no beginning of {expected!r}")
                return
            if cancel_after is not None and number >= cancel_after:
                tally.add(cancelled=1)
                return
        tally.fault(f"{body['prompt']!r}: the stream ended after {number} events without [DONE]")
    finally:
        connection.close()


def client(address, requests, end, seed, tally):
    chance = random.Random(seed)
    while time.time() < end:
        body, expected = chance.choice(requests)
        cancel_after = chance.randrange(12) if chance.random() < 0.3 else None
        try:
            one_request(address, body, expected, cancel_after, tally)
        except Exception as error:  # a client's thread must report, whatever it is
            tally.fault(f"{type(error).__name__}: {error}")


def resident(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024


def gauge(cluster, name):
    for line in cluster.get("/metrics")[1].splitlines():
        if line.startswith(f"espalier_{name}{{"):
            return float(line.split()[-1])
    raise AssertionError(f"no metric {name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tuned", action="store_true",
                        help="trees chosen at each step, lookups among them, instead of trees of one shape")
    parser.add_argument("--stages", type=int, default=0, help="of the model, on as many workers; 0: in the daemon")
    options = parser.parse_args()
    where = [f"--pipeline-parallel={options.stages}"] if options.stages else []
    with Cluster(workers=max(1, options.stages)) as cluster:
        train(cluster, "big", 32, 2, 60)
        train(cluster, "small", 16, 1, 60)
        cluster.run("serve", "big", "--ssm=small", *([] if options.tuned else ["--expansion=1,1,2,1"]), "--max-queue=150",
                    "--max-requests-per-batch=32", *where)
        requests = []
        for body in bodies():
            connection, reply = post(cluster.http, body)
            requests.append((body, json.loads(reply.read())["choices"][0]["text"]))
            connection.close()
        tally = Tally()
        start = time.time()
        threads = [threading.Thread(target=client, args=(cluster.http, requests, start + options.seconds, i, tally))
                   for i in range(options.clients)]
        for thread in threads:
            thread.start()
        # Memory is compared from where all clients have been there for a while.
        memory = []
        while time.time() < start + options.seconds:
            time.sleep(options.seconds / 20)
            memory.append(resident(cluster.daemon))
        for thread in threads:
            thread.join(STUCK_SECONDS + 30)
        stuck = sum(thread.is_alive() for thread in threads)
        cluster.wait(lambda: gauge(cluster, "num_requests_running") == 0 and gauge(cluster, "num_requests_waiting") == 0
                     and gauge(cluster, "kv_cache_usage_ratio") == 0, 30, "all slots are back")
        early, late = max(memory[4:8]), max(memory[-4:])
        result = {"seconds": round(time.time() - start, 1), "clients": options.clients, **tally.counts,
                  "stuck": stuck, "faults": len(tally.faults), "rss_mib_early": early, "rss_mib_late": late}
        print(json.dumps(result))
        for fault in tally.faults[:10]:
            print(fault)
        assert not tally.faults and stuck == 0
        assert tally.counts["finished"] > options.clients / 4, "hardly anything was answered"
        assert late <= early * 1.1 + 16, f"memory grew from {early} to {late} MiB"


if __name__ == "__main__":
    main()
