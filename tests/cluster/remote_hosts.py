"""Hosts that ssh reaches, on this machine: network namespaces on a bridge, each with an sshd and with a home, a /tmp and a /run
of its own, so that hosts share no file, but for one folder that they all see at /mnt.

Everything runs in a PID namespace: when the test ends, by whatever way, the kernel ends all that was started."""
import os
import shutil
import socket
import subprocess
import sys
import time

ENTERED = "ESPALIER_TEST_SSH"
PREFIX = "10.79.0."
PREFIX6 = "fd79::"
# Every host has them for itself. /tmp has the test's own folder, and on some machines the programs.
OWN = ["~root", "/run", "/tmp", "/var/tmp"]


def enter():
    """Starts this program again as root of its own namespaces. Returns why that is not possible; empty: it is in."""
    if os.environ.get(ENTERED):
        return ""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [program for program in ("sshd", "ssh", "ssh-keygen", "ip", "nsenter") if not shutil.which(program)]
    if missing:
        return f"not installed: {', '.join(missing)}; deploy/install.sh --tests installs them"
    if os.geteuid() != 0:
        return "sshd needs root to let users in"
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
    try:
        subprocess.run([*unshare, "sh", "-ec", "mount -t tmpfs none /mnt; ip link add name br0 type bridge"], check=True,
                       capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no rights to make namespaces here: {getattr(error, 'stderr', None) or error}"
    done = subprocess.run([*unshare, sys.executable, *sys.argv], env=dict(os.environ, **{ENTERED: "yes"}))
    sys.exit(done.returncode)


class RemoteHosts:
    def __init__(self, folder, count):
        self.folder = folder
        self.names = [f"host{number}" for number in range(1, count + 1)]
        self.holders, self.daemons = {}, []
        os.mkdir(f"{folder}/shared")
        self.key(f"{folder}/key")
        self.key(f"{folder}/other")
        self.key(f"{folder}/host_key")
        with open(f"{folder}/host_key.pub") as file:
            host_key = " ".join(file.read().split()[:2])
        for command in ("ip link set lo up", "ip link add name br0 type bridge", f"ip address add {PREFIX}100/24 dev br0",
                        "ip link set br0 up"):
            subprocess.run(command.split(), check=True)
        # Some kernels have none.
        self.ipv6 = subprocess.run(f"ip address add {PREFIX6}100/64 dev br0 nodad".split(), capture_output=True).returncode == 0
        with open(f"{folder}/known_hosts", "w") as known, open(f"{folder}/config", "w") as config:
            for number, name in enumerate(self.names, 1):
                known.write(f"{PREFIX}{number},{PREFIX6}{number} {host_key}\n")
                config.write(f"Host {name}\n  HostName {PREFIX}{number}\nHost {name}-ipv6\n  HostName {PREFIX6}{number}\n")
            config.write(f"Host *\n  User root\n  IdentityFile {folder}/key\n  IdentitiesOnly yes\n"
                         f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n")
        for number, name in enumerate(self.names, 1):
            self.start(number, name)
        for number in range(1, count + 1):
            self.wait_for_sshd(f"{PREFIX}{number}")

    def key(self, path):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)

    def start(self, number, name):
        def text(path):
            with open(path) as file:
                return file.read()
        # What a host has of its own is not visible to the others, nor is what they all had before. A shell waits in it.
        script = "\n".join(
            ["set -e", f"mount --bind {self.folder}/shared /mnt", *[f"mount -t tmpfs none {path}" for path in OWN], "chmod 700 ~root", "chmod 1777 /tmp /var/tmp",
             "mkdir -p -m 700 /run/sshd ~root/.ssh", f"echo '{text(f'{self.folder}/key.pub')}' > ~root/.ssh/authorized_keys",
             "umask 077", f"cat > /run/host_key << 'END'\n{text(f'{self.folder}/host_key')}END",
             "echo in", "exec sleep infinity"])
        holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert holder.stdout.readline() == "in\n"
        self.holders[name] = holder
        for command in (f"ip link add to{number} type veth peer name eth0 netns {holder.pid}", f"ip link set to{number} master br0 up"):
            subprocess.run(command.split(), check=True)
        for command in ("ip link set lo up", f"ip address add {PREFIX}{number}/24 dev eth0", "ip link set eth0 up"):
            self.on(name, *command.split())
        if self.ipv6:
            self.on(name, "ip", "address", "add", f"{PREFIX6}{number}/64", "dev", "eth0", "nodad")
        with open(f"{self.folder}/{name}.log", "w") as log:
            self.daemons.append(subprocess.Popen(
                [*self.prefix(name), shutil.which("sshd"), "-D", "-e", "-f", "/dev/null", "-o", "HostKey=/run/host_key",
                 "-o", "UsePAM=no", "-o", "PermitRootLogin=prohibit-password", "-o", "PidFile=none"],
                stdout=log, stderr=log, cwd="/"))

    def wait_for_sshd(self, address):
        end = time.time() + 10
        while True:
            try:
                with socket.create_connection((address, 22), timeout=1):
                    return
            except OSError:
                if time.time() > end:
                    raise
                time.sleep(0.05)

    def close(self):
        for process in [*self.daemons, *self.holders.values()]:
            process.kill()
            process.wait()
        for holder in self.holders.values():
            holder.stdout.close()

    def prefix(self, name):
        """What to put before a command that is to run on the host."""
        pid = self.holders[name].pid
        return ["nsenter", f"--net=/proc/{pid}/ns/net", f"--mount=/proc/{pid}/ns/mnt", "--"]

    def on(self, name, *command):
        return subprocess.run([*self.prefix(name), *command], check=True, capture_output=True, text=True, cwd="/").stdout
