"""gRPC calls from the descriptors of a .proto file, with Debian's python3-grpcio and without generated stubs."""
import grpc

SERVICES = {}  # by name, of the modules that were imported with use()


def use(*modules):
    for module in modules:
        for name, service in module.DESCRIPTOR.services_by_name.items():
            SERVICES[name] = service


class Calls:
    """calls.Generate(request): the reply, or an iterator of them. Bytes in the place of a request are sent as they are."""

    def __init__(self, address, service, token=None, credentials=None, **options):
        """credentials: of TLS."""
        options = list({"grpc.max_send_message_length": -1, "grpc.max_receive_message_length": -1,
                        "grpc.use_local_subchannel_pool": 1, **options}.items())
        self.channel = (grpc.secure_channel(address, credentials, options) if credentials else
                        grpc.insecure_channel(address, options))
        self.service = SERVICES[service]
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    def __getattr__(self, name):
        method = self.service.methods_by_name[name]
        kind = ("stream" if method.client_streaming else "unary") + "_" + ("stream" if method.server_streaming else "unary")
        reply = method.output_type._concrete_class
        call = getattr(self.channel, kind)(
            f"/{self.service.full_name}/{name}",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=reply.FromString)

        def run(request, timeout=60, metadata=(), **more):
            return call(request, timeout=timeout, metadata=[*self.metadata, *metadata], **more)
        return run

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def error_of(call):
    """Code and message of a call that fails; a stream is read to its end."""
    try:
        reply = call()
        for _ in reply if hasattr(reply, "__next__") else ():
            pass
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the call has succeeded")
