"""A switch between the hosts of hosts.py that loses and delays frames, where the kernel has no netem. It copies frames
between the ends of veth pairs through raw sockets: network_emulator.py LOSS DELAY INTERFACE... Before, on the other end of
each pair: network_emulator.py --finish-frames INTERFACE."""
import ctypes
import fcntl
import heapq
import random
import selectors
import socket
import struct
import sys
import time

ETH_P_ALL = 3
PACKET_IGNORE_OUTGOING = 23
SOL_PACKET = 263
SIOCETHTOOL = 0x8946
OFFLOADS = {"checksums": 0x17, "scatter-gather": 0x19, "segmentation (TSO)": 0x1f, "segmentation (GSO)": 0x24}
MOST_BYTES = 65536
MOST_QUEUED = 20000  # frames; more are lost, as in a router


def finish_frames(interface):
    """Makes the sender's kernel finish its frames: a copied one does not have the checksum that is left to hardware."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS.values():
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), ctypes.addressof(value)))


def run(loss, delay, interfaces):
    """loss: of each frame, 0 to 1; delay: seconds that each frame takes."""
    chance = random.Random(1)
    sockets, selector = {}, selectors.DefaultSelector()
    for name in interfaces:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        end.bind((name, 0))
        end.setblocking(False)
        sockets[name] = end
        selector.register(end, selectors.EVENT_READ, name)
    place = {}  # hardware address -> interface
    queue, number = [], 0
    print("forwarding", flush=True)
    while True:
        wait = max(0.0, queue[0][0] - time.monotonic()) if queue else None
        for key, _ in selector.select(wait):
            for _ in range(64):
                try:
                    frame = key.fileobj.recv(MOST_BYTES)
                except BlockingIOError:
                    break
                target, source = frame[:6], frame[6:12]
                place[source] = key.data
                if chance.random() < loss or len(queue) >= MOST_QUEUED:
                    continue
                to = [place[target]] if target in place else [name for name in sockets if name != key.data]
                number += 1
                heapq.heappush(queue, (time.monotonic() + delay, number, to, frame))
        now = time.monotonic()
        while queue and queue[0][0] <= now:
            _, _, to, frame = heapq.heappop(queue)
            for name in to:
                try:
                    sockets[name].send(frame)
                except OSError:
                    pass  # a full queue, or a link that is down


if __name__ == "__main__":
    if sys.argv[1] == "--finish-frames":
        finish_frames(sys.argv[2])
    else:
        run(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
