"""A DNS server for names of services and pods, as a cluster has one."""
import socket
import struct
import threading

DOMAIN = "svc.cluster.local"
A, NO_ERROR, NO_SUCH_NAME = 1, 0x8580, 0x8583  # answers with authority


class NameServer:
    """names: addresses by the full name; may change."""

    def __init__(self, address, namespace):
        self.names, self.search = {}, f"{namespace}.{DOMAIN} {DOMAIN} cluster.local"
        self.configuration = f"nameserver {address}\nsearch {self.search}\noptions ndots:5\n"
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))
        self.closing = False
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            query, caller = self.socket.recvfrom(1500)
            if self.closing:
                return
            self.socket.sendto(self.answer(query), caller)

    def answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode().lower())
            at += 1 + query[at]
        kind = struct.unpack(">H", query[at + 1:at + 3])[0]
        addresses = self.names.get(".".join(labels))
        found = addresses if addresses and kind == A else []
        flags = NO_SUCH_NAME if addresses is None else NO_ERROR
        records = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 1, 4) + socket.inet_aton(address) for address in found)
        return query[:2] + struct.pack(">HHHHH", flags, 1, len(found), 0, 0) + query[12:at + 5] + records

    def close(self):
        self.closing = True
        self.socket.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()
