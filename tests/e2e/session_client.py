"""A client of the Sessions service with numpy, and a small graph to train, for tests."""

import collections
import queue

import numpy as np
from espalier.v1 import graph_pb2, session_pb2

Kind = session_pb2
DTYPES = {np.dtype("float32"): graph_pb2.F32, np.dtype("int32"): graph_pb2.I32, np.dtype("int64"): graph_pb2.I64}
NUMPY = {number: dtype for dtype, number in DTYPES.items()}
Command = session_pb2.SessionCommand


class Refused(Exception):
    def __init__(self, reply):
        super().__init__(f"{reply.code}: {reply.error}")
        self.code, self.error, self.ended = reply.code, reply.error, reply.ended


def attribute(value):
    if isinstance(value, bool):
        return graph_pb2.Attribute(b=value)
    if isinstance(value, int):
        return graph_pb2.Attribute(i=value)
    if isinstance(value, float):
        return graph_pb2.Attribute(f=value)
    if isinstance(value, str):
        return graph_pb2.Attribute(s=value)
    return graph_pb2.Attribute(ints=graph_pb2.IntList(values=value))


class GraphMaker:
    def __init__(self, name):
        self.graph = graph_pb2.Graph(format_version=1, name=name)

    def value(self, name, dtype, dims, kind, initializer=None):
        value = self.graph.values.add(name=name, kind=kind, type=graph_pb2.TensorType(dtype=dtype, dims=dims))
        if initializer is not None:
            value.initializer.kind = initializer
        return len(self.graph.values) - 1

    def parameter(self, name, *dims, initializer=graph_pb2.Initializer.GLOROT_UNIFORM):
        return self.value(name, graph_pb2.F32, dims, graph_pb2.PARAMETER, initializer)

    def op(self, op, name, *inputs, **attributes):
        self.graph.values.add(name=name, kind=graph_pb2.COMPUTED)
        node = self.graph.nodes.add(name=name, op=op, inputs=inputs, outputs=[len(self.graph.values) - 1])
        for key, value in attributes.items():
            node.attributes[key].CopyFrom(attribute(value))
        return len(self.graph.values) - 1

    def output(self, name, value):
        self.graph.outputs.add(name=name, value=value)


def cnn(classes=10, dropout=0.0, hidden=32):
    """Images x [n, 1, 8, 8], labels [n]: a CNN whose named output is the probabilities."""
    make = GraphMaker("cnn")
    zeros = graph_pb2.Initializer.ZEROS
    x = make.value("x", graph_pb2.F32, [-1, 1, 8, 8], graph_pb2.INPUT)
    labels = make.value("labels", graph_pb2.I32, [-1], graph_pb2.INPUT)
    h = make.op(
        "conv2d",
        "conv",
        x,
        make.parameter("conv.weight", 8, 1, 3, 3),
        make.parameter("conv.bias", 8, initializer=zeros),
        strides=[1, 1],
        pads=[1, 1, 1, 1],
        dilations=[1, 1],
        groups=1,
    )
    h = make.op("relu", "act", h)
    h = make.op("flatten", "flat", h, axis=1)
    h = make.op(
        "linear",
        "fc1",
        h,
        make.parameter("fc1.weight", hidden, 512),
        make.parameter("fc1.bias", hidden, initializer=zeros),
    )
    h = make.op("relu", "act1", h)
    if dropout:
        h = make.op("dropout", "drop", h, rate=dropout)
    h = make.op(
        "linear",
        "fc2",
        h,
        make.parameter("fc2.weight", classes, hidden),
        make.parameter("fc2.bias", classes, initializer=zeros),
    )
    make.output("loss", make.op("sparse_categorical_crossentropy", "loss", h, labels))
    make.output("accuracy", make.op("accuracy", "accuracy", h, labels))
    make.output("probabilities", make.op("softmax", "probabilities", h))
    return make.graph


def images(count, seed=0, classes=10):
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(classes, 1, 8, 8))
    labels = random.integers(0, classes, count)
    return {
        "x": (centers[labels] + 0.7 * random.normal(size=(count, 1, 8, 8))).astype(np.float32),
        "labels": labels.astype(np.int32),
    }


def parts_of(arrays, kind=0, chunk=1 << 22):
    for name, array in arrays.items():
        array = np.ascontiguousarray(array)
        data = array.tobytes()
        for offset in range(0, max(len(data), 1), chunk):
            yield session_pb2.TensorPart(
                kind=kind,
                name=name,
                dtype=DTYPES[array.dtype],
                dims=array.shape,
                offset=offset,
                data=data[offset : offset + chunk],
            )


class SessionClient:
    """A session and its stream, which can break and begin again."""

    def __init__(self, calls, request, timeout=120):
        self.calls = calls
        self.opened = calls.Open(request, timeout=timeout)
        self.id = self.opened.session_id
        self.number = self.answered = 0
        self.attach()

    def attach(self):
        self.arrived = collections.deque()  # replies of the last message
        self.requests = queue.SimpleQueue()
        self.requests.put(Command(session_id=self.id, answered=self.answered))
        self.replies = self.calls.Run(iter(self.requests.get, None), timeout=600)
        self.hello = next(self.replies)
        return self.hello

    def detach(self):
        """As a client that is killed."""
        self.replies.cancel()

    def close(self):
        self.requests.put(None)
        self.calls.Close(session_pb2.CloseSessionRequest(session_id=self.id))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, parts=(), **command):
        """Does not wait for the answer."""
        self.number += 1
        parts = list(parts)
        for part in parts[:-1]:
            self.requests.put(Command(number=self.number, answered=self.answered, tensors=[part], more=True))
        self.requests.put(Command(number=self.number, answered=self.answered, tensors=parts[-1:], **command))

    def send_together(self, *commands):
        """Several commands without tensors as one message; as send."""
        group = None
        for command in commands:
            self.number += 1
            message = Command(number=self.number, answered=self.answered, **command)
            if group is None:
                group = message
            else:
                group.following.append(message)
        self.requests.put(group)

    def receive(self):
        """The next answer, whole; raises Refused."""
        tensors = {}
        while True:
            if not self.arrived:
                reply = next(self.replies)
                self.arrived.extend([reply, *reply.following])
            reply = self.arrived.popleft()
            for part in reply.tensors:
                key = part.name if part.kind != Kind.SESSION_GRADIENT else f"{part.name}.grad"
                array = tensors.setdefault(key, (NUMPY[part.dtype], list(part.dims), bytearray()))
                assert part.offset == len(array[2])
                array[2].extend(part.data)
            if not reply.more:
                break
        self.answered = reply.number
        if reply.code:
            raise Refused(reply)
        self.tensors = {
            name: np.frombuffer(bytes(data), dtype).reshape(dims) for name, (dtype, dims, data) in tensors.items()
        }
        return reply

    def do(self, parts=(), **command):
        self.send(parts, **command)
        return self.receive()

    @staticmethod
    def batch(source):
        """None: the next one; a list: rows; a dict: given; "held_out"."""
        if source is None:
            return session_pb2.SessionBatch(next=True), ()
        if source == "held_out":
            return session_pb2.SessionBatch(held_out=True), ()
        if isinstance(source, dict):
            return session_pb2.SessionBatch(given=True), parts_of(source)
        return session_pb2.SessionBatch(rows=graph_pb2.IntList(values=source)), ()

    def forward(self, source=None):
        batch, parts = self.batch(source)
        return dict(self.do(parts, forward=Command.Forward(batch=batch)).values)

    def zero_gradients(self):
        self.do(zero_gradients=Command.ZeroGradients())

    def backward(self):
        return dict(self.do(backward=Command.Backward()).values)

    def update(self):
        return dict(self.do(update=Command.Update()).values)

    def step(self, steps=1, source=None):
        batch, parts = self.batch(source)
        return [dict(report.values) for report in self.do(parts, step=Command.Step(steps=steps, batch=batch)).steps]

    def loop(self, source=None):
        """A step by hand."""
        self.zero_gradients()
        values = self.forward(source)
        return {**values, **self.backward(), **self.update()}

    def evaluate(self, source):
        batch, parts = self.batch(source)
        return dict(self.do(parts, evaluate=Command.Evaluate(batch=batch)).values)

    def predict(self, source, outputs=()):
        batch, parts = self.batch(source)
        self.do(parts, predict=Command.Predict(batch=batch, outputs=outputs))
        return self.tensors

    def get(self, kind, *names):
        self.do(get_tensors=Command.GetTensors(tensors=[Command.GetTensors.Choice(kind=kind, name=n) for n in names]))
        return self.tensors

    def set(self, kind, arrays):
        self.do(parts_of(arrays, kind), set_tensors=Command.SetTensors())

    def parameters(self):
        return self.get(Kind.SESSION_PARAMETER, "*")
