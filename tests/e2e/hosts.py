"""Several hosts on one machine: network namespaces with an address each, between which single directions can fail.

The test must run in namespaces of its own; enter() starts it again in them."""
import os
import socket
import subprocess
import sys
import time
import threading

PREFIX = "10.77.0."
COORDINATOR = PREFIX + "1"
NOBODY = "02:00:00:00:00:99"  # a hardware address that no host has


def enter():
    """Starts this program again in namespaces where it is root. Returns why that is not possible; empty: it is in."""
    if os.environ.get("ESPALIER_TEST_HOSTS") == "entered":
        return ""
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--"]
    try:
        subprocess.run([*unshare, "sh", "-c", "mount -t tmpfs none /mnt && ip link add name br0 type bridge"],
                       check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no rights to make network namespaces here: {getattr(error, 'stderr', None) or error}"
    os.execvpe("unshare", [*unshare, sys.executable, *sys.argv], dict(os.environ, ESPALIER_TEST_HOSTS="entered"))


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """The coordinator's host, where the test runs, and `count` others."""

    def __init__(self, count, loss=0.0, delay=0.0):
        """loss: of each frame between two hosts, 0 to 1; delay: seconds that each takes."""
        self.holders = {}
        self.emulator = None
        emulated = loss > 0 or delay > 0
        ip("link", "set", "lo", "up")
        if emulated:
            ip("link", "add", "name", "br0", "type", "veth", "peer", "name", "to1")
            ip("link", "set", "to1", "up")
        else:
            ip("link", "add", "name", "br0", "type", "bridge")
        ip("address", "add", f"{COORDINATOR}/24", "dev", "br0")
        ip("link", "set", "br0", "up")
        for number in range(2, 2 + count):
            # It keeps the namespace, and says when it is in it.
            holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo in; exec sleep infinity"],
                                      stdout=subprocess.PIPE, text=True)
            holder.stdout.readline()
            host = f"{PREFIX}{number}"
            self.holders[host] = holder
            ip("link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            ip("link", "set", f"to{number}", *(() if emulated else ("master", "br0")), "up")
            self.on(host, "ip", "link", "set", "lo", "up")
            self.on(host, "ip", "address", "add", f"{host}/24", "dev", "eth0")
            self.on(host, "ip", "link", "set", "eth0", "up")
        if emulated:
            self.emulate(loss, delay)

    def emulate(self, loss, delay):
        program = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "network_emulator.py")]
        subprocess.run([*program, "--finish-frames", "br0"], check=True)
        for host in self.holders:
            self.on(host, *program, "--finish-frames", "eth0")
        links = ["to1", *(f"to{host.removeprefix(PREFIX)}" for host in self.holders)]
        self.emulator = subprocess.Popen([*program, str(loss), str(delay), *links], stdout=subprocess.PIPE, text=True)
        self.emulator.stdout.readline()  # it forwards

    def prefix(self, host):
        """What to put before a command that is to run on the host."""
        return ["nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net", "--"]

    def on(self, host, *command):
        subprocess.run([*self.prefix(host), *command], check=True, capture_output=True, text=True)

    def cut(self, source, target):
        """Packets from `source` to `target` are lost; those of the other direction arrive."""
        self.on(source, "ip", "neighbour", "replace", target, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def mend(self, source, target):
        self.on(source, "ip", "neighbour", "delete", target, "dev", "eth0")

    def unplug(self, host, seconds):
        """Nothing reaches the host, and nothing leaves it, for so long."""
        ip("link", "set", f"to{host.removeprefix(PREFIX)}", "down")
        time.sleep(seconds)
        ip("link", "set", f"to{host.removeprefix(PREFIX)}", "up")

    def close(self):
        if self.emulator is not None:
            self.emulator.kill()
            self.emulator.wait()
            self.emulator.stdout.close()
        for host, holder in self.holders.items():
            ip("link", "delete", f"to{host.removeprefix(PREFIX)}")
            holder.kill()
            holder.wait()
            holder.stdout.close()
        ip("link", "delete", "br0")


class Recorder:
    """What passes between two of the hosts, packet by packet, as somebody who listens at a switch sees it."""

    ALL_PROTOCOLS = 3  # ETH_P_ALL

    def __init__(self, first, second):
        self.pair = {socket.inet_aton(first), socket.inet_aton(second)}
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(self.ALL_PROTOCOLS))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
        self.socket.bind((f"to{first.removeprefix(PREFIX)}", 0))
        self.socket.settimeout(0.1)
        self.packets, self.stopping = [], False
        self.thread = threading.Thread(target=self.listen)

    def listen(self):
        while not self.stopping:
            try:
                packet = self.socket.recv(1 << 17)
            except TimeoutError:
                continue
            if {packet[26:30], packet[30:34]} == self.pair:  # source and target of IPv4
                self.packets.append(packet[34:])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.thread.join()
        self.socket.close()
