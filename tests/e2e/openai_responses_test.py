"""The Responses API with OpenAI's Python client, against a model that has memorized two conversations."""
import json
import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import client_environment  # noqa: E402

if __name__ == "__main__":
    client_environment.enter()
import openai  # noqa: E402
import pydantic  # noqa: E402
from cluster import Cluster, write_private  # noqa: E402
from language_models import CALL, serve_thinker  # noqa: E402
from openai.types.responses import Response, ResponseStreamEvent  # noqa: E402

KEYS = ["sk-one-0123456789abcdef", "sk-two-0123456789abcdef"]
WEATHER = {"type": "function", "name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Ur", "Haran"]},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=6)
    age: int = pydantic.Field(ge=0, le=930)


class ResponsesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["ESPALIER_TOKEN"] = KEYS[0]
        keys = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"keys.{os.getpid()}")
        write_private(keys, f"{KEYS[0]}\n{KEYS[1]} role=infer owner=other\n")
        cls.cluster = Cluster(workers=0, daemon_flags=[f"--api-key-file={keys}", "--local-workers=1",
                                                       "--response-store-bytes=400000"])
        try:
            cls.cluster.wait_for_workers(1)
            serve_thinker(cls.cluster, "--ngram=4")
        except BaseException:
            cls.cluster.__exit__(True)
            raise
        cls.client, cls.stranger = (openai.OpenAI(base_url=f"http://{cls.cluster.http}/v1", api_key=key, max_retries=0,
                                                  timeout=120) for key in KEYS)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    @staticmethod
    def fields(**fields):
        """A stop string is no field of this API, but it is one of ours."""
        return {"model": "thinker", "input": "Who?", "temperature": 0, "max_output_tokens": 200,
                "extra_body": {"stop": ["\nend"]}, **fields}

    def respond(self, **fields):
        """As the client's types say, all fields that they demand included."""
        raw = self.client.responses.with_raw_response.create(**self.fields(**fields))
        Response.model_validate(json.loads(raw.text), strict=False)
        return raw.parse()

    def test_response(self):
        answer = self.respond(metadata={"a": "b"}, user="me")
        self.assertTrue(answer.id.startswith("resp_"))
        self.assertEqual((answer.object, answer.status, answer.error), ("response", "completed", None))
        self.assertEqual(answer.output_text, "Noah.")
        self.assertEqual([item.type for item in answer.output], ["reasoning", "message"])
        self.assertEqual(answer.output[0].content[0].text, "hm, who")
        self.assertEqual(answer.usage.input_tokens, len("user: Who?\nassistant: "))
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
        self.assertGreater(answer.usage.output_tokens, len("hm, whoNoah."))
        self.assertEqual((answer.metadata, answer.user, answer.temperature), ({"a": "b"}, "me", 0))
        self.assertGreaterEqual(answer.completed_at, answer.created_at)
        again = self.respond(extra_body={"stop": ["\nend"], "include_reasoning": False})
        self.assertEqual([item.type for item in again.output], ["message"])
        self.assertGreater(again.usage.input_tokens_details.cached_tokens, 0)

    def test_stream(self):
        raw = self.client.responses.with_raw_response.create(**self.fields(stream=True))
        lines = raw.http_response.read().decode().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        self.assertEqual([line[7:] for line in lines if line.startswith("event: ")], [e["type"] for e in events])
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        for event in events:
            EVENT.validate_python(event)
        self.assertEqual(events[0]["type"], "response.created")
        self.assertEqual(events[-1]["type"], "response.completed")
        with self.client.responses.stream(**self.fields()) as stream:
            deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
            answer = stream.get_final_response()
        self.assertEqual("".join(deltas), "Noah.")
        self.assertEqual(answer.output_text, "Noah.")
        self.assertEqual(answer.output[0].content[0].text, "hm, who")
        self.assertEqual(self.client.responses.retrieve(answer.id).output_text, "Noah.")

    def test_incomplete_response(self):
        answer = self.respond(max_output_tokens=4)
        self.assertEqual((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        last = list(self.client.responses.create(**self.fields(max_output_tokens=4, stream=True)))[-1]
        self.assertEqual(last.type, "response.incomplete")

    def test_tool_calls(self):
        asked = {"input": "Rain?", "tools": [WEATHER]}
        cut = self.respond(**asked, extra_body={"stop": ["days"]})
        self.assertEqual((cut.status, cut.output[-1].type, cut.output[-1].status),
                         ("incomplete", "function_call", "incomplete"))
        answer = self.respond(**asked)
        self.assertEqual(answer.status, "completed")
        call, = answer.output
        self.assertEqual((call.type, call.name, json.loads(call.arguments)), ("function_call", "weather", CALL["arguments"]))
        with self.client.responses.stream(**self.fields(**asked)) as stream:
            events = [e for e in stream if e.type.startswith("response.function_call_arguments")]
        self.assertGreater(len(events), 3)
        self.assertEqual("".join(e.delta for e in events[:-1]), call.arguments)
        self.assertEqual(events[-1].arguments, call.arguments)
        # The output goes back, with the call or behind its response.
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "dry"}
        whole = self.respond(input=[{"role": "user", "content": "Rain?"}, *answer.output, output], tools=[WEATHER])
        behind = self.respond(input=[output], previous_response_id=answer.id, tools=[WEATHER])
        self.assertEqual(behind.output_text, whole.output_text)
        self.assertEqual(behind.usage.input_tokens, whole.usage.input_tokens)
        with self.assertRaisesRegex(openai.BadRequestError, "call_id") as caught:
            self.respond(input=[output], tools=[WEATHER])
        self.assertEqual(caught.exception.param, "input")

    def test_tool_choice(self):
        strict = {**WEATHER, "strict": True}
        strict["parameters"] = json.loads(json.dumps(WEATHER["parameters"]).replace("Ur", "Eden"))
        call, = self.respond(input="Rain?", tools=[strict]).output
        self.assertIn(json.loads(call.arguments)["city"], ("Eden", "Haran"))
        other = {"type": "function", "name": "wind", "parameters": {"type": "object", "properties": {},
                                                                     "additionalProperties": False}}
        for choice, name in [({"type": "function", "name": "wind"}, "wind"),
                             ({"type": "allowed_tools", "mode": "required",
                               "tools": [{"type": "function", "name": "wind"}]}, "wind"),
                             ({"type": "allowed_tools", "mode": "required",
                               "tools": [{"type": "function", "name": "weather"}]}, "weather")]:
            answer = self.respond(tools=[WEATHER, other], tool_choice=choice, parallel_tool_calls=False)
            self.assertEqual([item.name for item in answer.output if item.type == "function_call"], [name], choice)
            self.assertEqual(len(answer.tools), 2)
        self.assertEqual({item.type for item in self.respond(input="Rain?", tools=[WEATHER], tool_choice="none").output},
                         {"message"})

    def test_text_formats(self):
        answer = self.client.responses.parse(**self.fields(text_format=Person, temperature=1, extra_body={"seed": 1}))
        self.assertIsInstance(answer.output_parsed, Person)
        answer = self.respond(text={"format": {"type": "json_object"}}, temperature=1, extra_body={"seed": 1})
        self.assertTrue(answer.output_text.startswith("{"))
        self.assertEqual(answer.text.format.type, "json_object")

    def test_logprobs(self):
        include = ["message.output_text.logprobs"]
        part = self.respond(include=include, top_logprobs=2).output[1].content[0]
        self.assertEqual("".join(t.token for t in part.logprobs), part.text)
        for token in part.logprobs:
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertAlmostEqual(token.top_logprobs[0].logprob, token.logprob)
        events = self.client.responses.create(**self.fields(include=include, stream=True))
        streamed = [t.token for e in events if e.type == "response.output_text.delta" for t in e.logprobs]
        self.assertEqual(streamed, [t.token for t in part.logprobs])

    def test_conversations(self):
        first = self.respond(instructions="Be brief.")
        second = self.respond(input="Rain?", previous_response_id=first.id)
        # The instructions before are not those of this one; the thoughts are not shown by this template. What the
        # model says behind instructions, which it has not learned, is not the same on every machine.
        asked = f"user: Who?\nassistant: {first.output_text}\nuser: Rain?\nassistant: "
        self.assertEqual(second.usage.input_tokens, len(asked.encode()))
        self.assertEqual(second.previous_response_id, first.id)
        items = list(self.client.responses.input_items.list(second.id, order="asc", limit=2))  # over two pages
        self.assertEqual([item.type for item in items],
                         ["message", *(item.type for item in first.output), "message"])
        self.assertEqual(items[-2].id, first.output[-1].id)
        newest = self.client.responses.input_items.list(second.id, limit=1).data[0]
        self.assertEqual(newest.content[0].text, "Rain?")
        # What is there twice has two ids: the list of pages would never end.
        again = self.respond(input=[{"type": "item_reference", "id": first.output[-1].id}, {"role": "user", "content": "Rain?"}],
                             previous_response_id=first.id)
        items = list(self.client.responses.input_items.list(again.id, limit=1))
        self.assertEqual(len(items), len(first.output) + 3)
        self.assertEqual(len({item.id for item in items}), len(items))
        # By reference, and as the client has it.
        by_id = self.respond(input=[{"role": "user", "content": "Who?"}, {"type": "item_reference", "id": first.output[-1].id},
                                    {"role": "user", "content": "Rain?"}])
        by_hand = self.respond(input=[{"role": "user", "content": "Who?"}, *(o.model_dump() for o in first.output),
                                      {"role": "user", "content": "Rain?"}])
        self.assertEqual({by_id.usage.input_tokens, by_hand.usage.input_tokens}, {second.usage.input_tokens})
        self.assertEqual({by_id.output_text, by_hand.output_text}, {second.output_text})
        count = self.client.responses.input_tokens.count(model="thinker", input="Rain?", previous_response_id=first.id)
        self.assertEqual(count.input_tokens, second.usage.input_tokens)

    def test_stored_responses(self):
        kept, unkept = self.respond(), self.respond(store=False)
        found = self.client.responses.retrieve(kept.id)
        self.assertEqual(found.output_text, kept.output_text)
        calls = [lambda: self.client.responses.retrieve(unkept.id), lambda: self.stranger.responses.retrieve(kept.id),
                 lambda: self.stranger.responses.delete(kept.id), lambda: self.client.responses.retrieve("resp_0"),
                 lambda: self.stranger.responses.input_items.list(kept.id),
                 lambda: self.stranger.responses.create(**self.fields(previous_response_id=kept.id)),
                 lambda: self.respond(input=[{"type": "item_reference", "id": unkept.output[0].id}])]
        for call in calls:
            with self.assertRaises(openai.NotFoundError):
                call()
        self.client.responses.delete(kept.id)
        for call in (self.client.responses.retrieve, self.client.responses.delete, self.client.responses.cancel):
            with self.assertRaises(openai.NotFoundError):
                call(kept.id)
        # The ones used last stay: 400 kB are far fewer than these.
        first = self.respond()
        for _ in range(8):
            last = self.respond(input="Who?" + " " * 60, metadata={str(i): "x" * 512 for i in range(16)},
                                instructions="x" * 200)
            self.client.responses.retrieve(first.id)
        for _ in range(60):
            self.respond(metadata={str(i): "x" * 512 for i in range(16)})
        self.client.responses.retrieve(self.respond().id)
        with self.assertRaisesRegex(openai.NotFoundError, "response-store-bytes"):
            self.client.responses.retrieve(last.id)

    LONG = {"temperature": 1, "max_output_tokens": 450, "extra_body": {"ignore_eos": True, "seed": 3}}

    def wait(self, answer):
        deadline = time.time() + 60
        while answer.status in ("queued", "in_progress"):
            self.assertLess(time.time(), deadline)
            time.sleep(0.05)
            answer = self.client.responses.retrieve(answer.id)
        return answer

    def test_background(self):
        answer = self.respond(background=True)
        answer = self.wait(answer)
        self.assertEqual((answer.status, answer.output_text), ("completed", "Noah."))
        self.assertEqual(self.client.responses.cancel(answer.id).status, "completed")  # nothing is left of it to end
        with self.assertRaisesRegex(openai.BadRequestError, "background"):
            self.client.responses.cancel(self.respond().id)
        running = [self.respond(background=True, **self.LONG) for _ in range(8)]
        ended = [self.client.responses.cancel(answer.id).status for answer in running]
        self.assertIn("cancelled", ended)
        for answer, status in zip(running, ended):
            self.assertEqual(self.client.responses.retrieve(answer.id).status, status)
        self.assertEqual(self.respond().output_text, "Noah.")  # their places are free

    def test_background_streams_can_be_resumed(self):
        fields = self.fields(background=True, stream=True, **self.LONG)
        seen = []
        with self.client.responses.create(**fields) as stream:
            for event in stream:
                seen.append(event)
                if len(seen) == 12:
                    break  # the connection is closed; it goes on
        name = seen[0].response.id
        rest = list(self.client.responses.retrieve(name, stream=True, starting_after=seen[-1].sequence_number))
        events = seen + rest
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual(events[-1].type, "response.incomplete")
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, events[-1].response.output_text)
        again = list(self.client.responses.retrieve(name, stream=True))
        self.assertEqual([e.type for e in again], [e.type for e in events])
        self.assertEqual(self.client.responses.retrieve(name).output_text, text)

    def test_truncation(self):
        history = [turn for i in range(12) for turn in ({"role": "user", "content": f"{i}" + "x" * 40},
                                                        {"role": "assistant", "content": "Noah."})]
        asked = {"input": [{"role": "system", "content": "S"}, *history, {"role": "user", "content": "Who?"}],
                 "max_output_tokens": 64}
        with self.assertRaises(openai.BadRequestError):
            self.respond(**asked)
        answer = self.respond(**asked, truncation="auto")
        self.assertEqual(answer.truncation, "auto")
        # As many of the last turns as fit the context of 512 beside the answer.
        turn = len("user: 9" + "x" * 40 + "\nassistant: Noah.\n")
        self.assertLessEqual(answer.usage.input_tokens, 512 - 64)
        self.assertGreater(answer.usage.input_tokens, 512 - 64 - turn - 1)

    def test_errors(self):
        for fields, param in [({"input": 7}, "input"), ({"max_output_tokens": 0}, "max_output_tokens"),
                              ({"tools": [{"type": "web_search"}]}, "tools"), ({"conversation": "c"}, "conversation"),
                              ({"extra_body": {"max_tokens": 7}}, "max_tokens"), ({"temperature": -1}, "temperature"),
                              ({"reasoning": {"effort": "low"}}, "reasoning_effort"),
                              ({"previous_response_id": "resp_0"}, "previous_response_id")]:
            with self.assertRaises((openai.BadRequestError, openai.NotFoundError)) as caught:
                self.respond(**fields)
            self.assertEqual(caught.exception.param, param)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.respond(model="nobody")
        self.assertEqual(caught.exception.code, "model_not_found")
        for call in (lambda: self.client.get("/responses/resp_0?limits=2", cast_to=object),
                     lambda: self.client.get("/responses/resp_0/input_items?limit=0", cast_to=object)):
            with self.assertRaises(openai.BadRequestError):
                call()
        nobody = openai.OpenAI(base_url=f"http://{self.cluster.http}/v1", api_key="sk-nobody-0123456789", max_retries=0)
        for call in (lambda: nobody.responses.create(**self.fields()), lambda: nobody.responses.retrieve("resp_0"),
                     lambda: nobody.responses.delete("resp_0"), lambda: nobody.responses.cancel("resp_0"),
                     lambda: nobody.responses.input_items.list("resp_0"),
                     lambda: nobody.responses.input_tokens.count(model="thinker", input="x")):
            with self.assertRaises(openai.AuthenticationError):
                call()


if __name__ == "__main__":
    unittest.main()
