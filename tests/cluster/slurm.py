"""A SLURM of two nodes on this machine: munge, a controller and two slurmd, as their own processes in one folder.

They run in a network namespace of their own, whose loopback nobody else uses, and in a PID namespace: when the test ends,
by whatever way, the kernel ends them and every process that their jobs have left behind."""
import os
import shutil
import socket
import subprocess
import sys
import time

PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel"]
ENTERED = "ESPALIER_TEST_SLURM"
NETWORK = ["ip link set lo up", "ip link add name br0 type bridge", "ip address add 10.78.0.1/24 dev br0",
           "ip address add 10.78.0.2/24 dev br0", "ip link set br0 up"]

CONF = """\
ClusterName=espalier
SlurmctldHost={host}(10.78.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort=6817
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,batch_sched_delay=0,defer_batch
ReturnToService=2
KillWait=5
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=10.78.0.1 Port=6818 CPUs=4 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=10.78.0.2 Port=6819 CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def enter():
    """Starts this program again as root of its own namespaces. Returns why that is not possible; empty: it is in."""
    if os.environ.get(ENTERED):
        for command in NETWORK:
            subprocess.run(command.split(), check=True)
        return ""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"not installed: {', '.join(missing)}; deploy/install.sh --tests installs them"
    if os.geteuid() != 0:
        return "munged and slurmd start jobs for other users, which needs root"
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
    try:
        subprocess.run([*unshare, "sh", "-ec", "; ".join(NETWORK)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no rights to make namespaces here: {getattr(error, 'stderr', None) or error}"
    done = subprocess.run([*unshare, sys.executable, *sys.argv], env=dict(os.environ, **{ENTERED: "yes"}))
    sys.exit(done.returncode)


class Slurm:
    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        os.chmod(folder, 0o755)
        host = socket.gethostname()
        with open(f"{folder}/slurm.conf", "w") as file:
            file.write(CONF.format(folder=folder, host=host))
        self.env = dict(os.environ, SLURM_CONF=f"{folder}/slurm.conf")
        os.mkdir(f"{folder}/state")
        with open(os.open(f"{folder}/munge.key", os.O_WRONLY | os.O_CREAT, 0o400), "wb") as file:
            file.write(os.urandom(1024))
        self.start("munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock",
                   f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log")
        self.wait(lambda: os.path.exists(f"{folder}/munge.sock"), 20, "munged answers")
        self.start("slurmctld", "-D")
        for node in ("n1", "n2"):
            self.start("slurmd", "-D", "-N", node)
        self.wait(lambda: self.run("sinfo", "-h", "-o", "%T %D").stdout.split() == ["idle", "2"], 30, "both nodes are idle")

    def start(self, *command):
        with open(f"{self.folder}/{command[0]}.{len(self.processes)}.out", "w") as log:
            self.processes.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def run(self, *command, check=True, input=None, env=None):
        done = subprocess.run(command, env=dict(self.env, **(env or {})), capture_output=True, text=True, cwd=self.folder, input=input)
        if check and done.returncode != 0:
            raise OSError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def wait(self, condition, seconds, what):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if condition():
                    return
            except OSError:
                pass
            for process in self.processes:
                if process.poll() is not None:
                    raise AssertionError(f"{process.args} ended with {process.returncode} while waiting: {what}\n{self.logs()}")
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds} s: {what}\n{self.logs()}")

    def logs(self):
        text = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".out", ".log")):
                with open(os.path.join(self.folder, name), errors="replace") as file:
                    text.append(f"--- {name}\n" + "".join(file.readlines()[-25:]))
        return "\n".join(text)

    def submit(self, script, *options):
        return self.run("sbatch", "--parsable", *options, input=script).stdout.strip()

    def job(self, job_id):
        """Fields of `scontrol show job`."""
        words = self.run("scontrol", "--oneliner", "show", "job", job_id).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job_id):
        return self.job(job_id)["JobState"]

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
