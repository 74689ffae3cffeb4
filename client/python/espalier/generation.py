"""Text from served language models, and embeddings."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from espalier import errors
from espalier.notes import warn
from espalier.rpc import method
from espalier.steps import Emit, InitialMetadata, Lost, Open, Read, Step, Steps, Unary, consume, operation, stream
from espalier.v1 import inference_pb2

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
_SAMPLING = frozenset(inference_pb2.SamplingOptions.DESCRIPTOR.fields_by_name) - {"seed", "has_seed"}
_TURN = frozenset(inference_pb2.ChatTurn.DESCRIPTOR.fields_by_name)


@dataclass
class Generation:
    """What a model has generated. With n > 1 outputs the others are in `others`."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""  # "stop", "length", "tool_calls", "cancelled"
    reasoning: str = ""
    usage: inference_pb2.Usage | None = None
    others: list[Generation] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text


def generate_request(model: str, prompt: Prompt, options: Mapping[str, Any]) -> inference_pb2.GenerateRequest:
    """The request for a text, token ids, or a conversation as [{"role": "user", "content": "..."}].

    `options` are fields of SamplingOptions and of GenerateRequest. InvalidArgument for others.
    """
    request = inference_pb2.GenerateRequest(model=model)
    try:
        if isinstance(prompt, str):
            request.text = prompt
        elif prompt and isinstance(prompt[0], Mapping):
            for turn in prompt:
                request.chat.turns.append(_turn(turn))  # type: ignore[arg-type]
        else:
            request.tokens.ids.extend(int(token) for token in prompt)  # type: ignore[arg-type]
        for name, value in options.items():
            if name == "seed":
                request.sampling.seed, request.sampling.has_seed = int(value), True
            elif name in _SAMPLING:
                request.sampling.MergeFrom(inference_pb2.SamplingOptions(**{name: value}))
            else:
                fields: dict[str, Any] = {name: [value] if name == "stop" and isinstance(value, str) else value}
                request.MergeFrom(inference_pb2.GenerateRequest(**fields))
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgument(
            f"generate: {error}; options are the fields of SamplingOptions and GenerateRequest "
            "(docs/reference/grpc-api.md)"
        ) from None
    return request


def _turn(turn: Mapping[str, Any]) -> inference_pb2.ChatTurn:
    unknown = set(turn) - _TURN
    if unknown:
        raise ValueError(f"a turn has the field {sorted(unknown)[0]!r}; known are {', '.join(sorted(_TURN))}")
    fields = {name: value for name, value in turn.items() if value is not None}
    if "tool_calls" in fields and not isinstance(fields["tool_calls"], str):
        fields["tool_calls"] = json.dumps(fields["tool_calls"])
    return inference_pb2.ChatTurn(**fields)


def _generate(
    request: inference_pb2.GenerateRequest,
) -> Generator[Step | Emit[inference_pb2.GenerateReply], Any, None]:
    replies = yield Open(method("Inference", "Generate"), request)
    try:
        metadata = yield InitialMetadata(replies)
        if "espalier-warning" in metadata:
            warn(metadata["espalier-warning"])
        while (reply := (yield Read(replies))) is not None:
            yield Emit(reply)
    except Lost as lost:
        raise lost.error from None
    finally:
        replies.cancel()


class GenerationMethods:
    """Calls to served models."""

    @operation
    def generate(self, /, model: str, prompt: Prompt, **options: Any) -> Steps[Generation]:
        """Generates from a text, token ids, or a conversation: [{"role": "user", "content": "..."}].

        `options` are fields of SamplingOptions (temperature, top_p, seed, ...) and of GenerateRequest (max_tokens,
        stop, n, ...). NotFound if no model of this name is served.
        """
        outputs: dict[int, Generation] = {}

        def take(reply: inference_pb2.GenerateReply) -> None:
            output = outputs.setdefault(reply.index, Generation())
            output.text += reply.text
            output.reasoning += reply.reasoning
            output.tokens.extend(reply.tokens)
            output.finish_reason = reply.finish_reason or output.finish_reason
            if reply.HasField("usage"):
                outputs.setdefault(0, Generation()).usage = reply.usage

        yield from consume(_generate(generate_request(model, prompt, options)), take)
        first, *others = [outputs[index] for index in sorted(outputs)] or [Generation()]
        first.others = others
        return first

    @stream
    def generate_stream(
        self, /, model: str, prompt: Prompt, **options: Any
    ) -> Generator[Step | Emit[inference_pb2.GenerateReply], Any, None]:
        """As `generate`, piece by piece: GenerateReply has `text`, `tokens`, and at the end `finish_reason`.

        Ending the iteration early cancels the request.
        """
        yield from _generate(generate_request(model, prompt, options))

    @operation
    def embed(self, model: str, texts: Sequence[str], *, timeout: float = 600.0) -> Steps[list[list[float]]]:
        """One vector for each text, of L2 norm 1."""
        request = inference_pb2.EmbedRequest(model=model)
        for text in texts:
            request.inputs.add(text=text)
        reply = yield Unary(method("Inference", "Embed"), request, timeout)
        return [list(embedding.values) for embedding in reply.embeddings]
