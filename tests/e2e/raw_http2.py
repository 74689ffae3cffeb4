"""Handwritten HTTP/2 frames, for input that no gRPC library sends."""
import socket
import struct
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(text):
    """A string without Huffman's code, of any length."""
    data = text if isinstance(text, bytes) else text.encode()
    size, out = len(data), b""
    if size < 127:
        return bytes([size]) + data
    size -= 127
    while size > 127:
        out += bytes([size & 127 | 128])
        size >>= 7
    return b"\x7f" + out + bytes([size]) + data


def headers(path, *more):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"), ("te", "trailers"),
              ("content-type", "application/grpc"), *more]
    return b"".join(b"\x00" + literal(name) + literal(value) for name, value in fields)


def message(payload, length=None, packed=0):
    """One gRPC message; `length` may lie."""
    return bytes([packed]) + struct.pack(">I", len(payload) if length is None else length) + payload


class Connection:
    def __init__(self, address, timeout=20):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.buffer, self.next = b"", 1
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))

    def send(self, data):
        self.socket.sendall(data)

    def begin(self, path, *more, flags=0):
        """A stream with its headers; more data may come."""
        stream, self.next = self.next, self.next + 2
        self.send(frame(HEADERS, END_HEADERS | flags, stream, headers(path, *more)))
        return stream

    def frames(self, seconds):
        """What comes, until nothing does: (kind, flags, stream, payload). Settings and pings are answered."""
        end = time.time() + seconds
        while True:
            while len(self.buffer) >= 9:
                size = struct.unpack(">I", b"\0" + self.buffer[:3])[0]
                if len(self.buffer) < 9 + size:
                    break
                kind, flags = self.buffer[3], self.buffer[4]
                stream, payload = struct.unpack(">I", self.buffer[5:9])[0], self.buffer[9:9 + size]
                self.buffer = self.buffer[9 + size:]
                if kind in (SETTINGS, PING) and not flags & ACK:
                    self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
                yield kind, flags, stream, payload
            left = end - time.time()
            if left <= 0:
                return
            self.socket.settimeout(left)
            try:
                got = self.socket.recv(1 << 16)
            except TimeoutError:
                return
            if not got:
                return
            self.buffer += got

    def status(self, stream, seconds=20):
        """The stream's grpc-status, or the name of the frame that ended it or the connection; None: nothing came."""
        for kind, flags, of, payload in self.frames(seconds):
            at = payload.find(b"grpc-status")
            if kind == HEADERS and of == stream and at >= 0:  # gRPC's core writes trailers without Huffman's code
                size = payload[at + 11]
                return int(payload[at + 12:at + 12 + size])
            if kind == RST_STREAM and of == stream:
                return "RST_STREAM"
            if kind == GOAWAY:
                return "GOAWAY"
        return None

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
