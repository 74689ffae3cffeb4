"""Anthropic's Python client against a model that has memorized two conversations."""
import concurrent.futures
import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import client_environment  # noqa: E402

if __name__ == "__main__":
    client_environment.enter()
import anthropic  # noqa: E402
import pydantic  # noqa: E402
from anthropic.types import Message, RawMessageStreamEvent  # noqa: E402
from cluster import Cluster, write_private  # noqa: E402
from language_models import CALL, serve_thinker  # noqa: E402

KEY = "sk-test-0123456789abcdef"
WHO = [{"role": "user", "content": "Who?"}]
RAIN = [{"role": "user", "content": "Rain?"}]
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Ur", "Haran"]},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}
WIND = {"name": "wind", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
EVENT = pydantic.TypeAdapter(RawMessageStreamEvent)


class AnthropicClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["ESPALIER_TOKEN"] = KEY
        keys = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"keys.{os.getpid()}")
        write_private(keys, f"{KEY}\n")
        cls.cluster = Cluster(workers=0, daemon_flags=[f"--api-key-file={keys}", "--local-workers=1"])
        try:
            cls.cluster.wait_for_workers(1)
            serve_thinker(cls.cluster, "--ngram=4", "--max-queue=1", "--max-requests-per-batch=1")
        except BaseException:
            cls.cluster.__exit__(True)
            raise
        cls.client = cls.open(api_key=KEY)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    @classmethod
    def open(cls, **key):
        return anthropic.Anthropic(base_url=f"http://{cls.cluster.http}", max_retries=0, timeout=120, **key)

    @staticmethod
    def fields(temperature=0, extra_body=None, **fields):
        """The newest client sets no temperature by itself; the API has it."""
        return {"model": "thinker", "messages": WHO, "max_tokens": 200, "stop_sequences": ["\nend"],
                "extra_body": {"temperature": temperature, **(extra_body or {})}, **fields}

    def ask(self, **fields):
        """As the client's types say, all fields that they demand included."""
        raw = self.client.messages.with_raw_response.create(**self.fields(**fields))
        Message.model_validate(json.loads(raw.text()), strict=False)
        return raw.parse()

    def test_message(self):
        answer = self.ask(metadata={"user_id": "me"})
        self.assertEqual(answer.id, f"msg_{answer._request_id}")
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", "thinker"))
        thinking, text = answer.content
        self.assertEqual((thinking.type, thinking.thinking), ("thinking", "hm, who"))
        self.assertEqual((text.type, text.text), ("text", "Noah."))
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", "\nend"))
        usage = answer.usage
        self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, len("user: Who?\nassistant: "))
        self.assertGreater(usage.output_tokens, len("hm, whoNoah."))
        hidden = self.ask(thinking={"type": "disabled"})
        self.assertEqual([block.type for block in hidden.content], ["text"])
        self.assertEqual(self.ask(max_tokens=4).stop_reason, "max_tokens")
        endless = self.ask(max_tokens=4000, extra_body={"ignore_eos": True}, stop_sequences=[], temperature=1)
        self.assertEqual(endless.stop_reason, "model_context_window_exceeded")

    def test_stream(self):
        raw = self.client.messages.with_raw_response.create(**self.fields(stream=True))
        lines = raw.http_response.read().decode().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        self.assertEqual([line[7:] for line in lines if line.startswith("event: ")], [e["type"] for e in events])
        for event in events:
            EVENT.validate_python(event)
        whole = self.ask()
        with self.client.messages.stream(**self.fields()) as stream:
            self.assertEqual("".join(stream.text_stream), "Noah.")
            answer = stream.get_final_message()
        self.assertEqual([block.model_dump(include={"type", "text", "thinking"}) for block in answer.content],
                         [block.model_dump(include={"type", "text", "thinking"}) for block in whole.content])
        self.assertEqual((answer.stop_reason, answer.stop_sequence), (whole.stop_reason, whole.stop_sequence))
        self.assertEqual(answer.usage.output_tokens, whole.usage.output_tokens)

    def test_tool_calls(self):
        asked = {"messages": RAIN, "tools": [WEATHER]}
        answer = self.ask(**asked)
        self.assertEqual(answer.stop_reason, "tool_use")
        call, = answer.content
        self.assertEqual((call.type, call.name, call.input), ("tool_use", CALL["name"], CALL["arguments"]))
        with self.client.messages.stream(**self.fields(**asked)) as stream:
            parts = [e.partial_json for e in stream if e.type == "input_json"]
            final = stream.get_final_message()
        self.assertGreater(len(parts), 3)
        self.assertEqual(json.loads("".join(parts)), call.input)
        self.assertEqual(final.content[0].input, call.input)
        # Cut off, it is no call to execute.
        cut = self.ask(**asked, stop_sequences=["days"])
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", "days"))
        with self.client.messages.stream(**self.fields(**asked, stop_sequences=["days"])) as stream:
            cut = stream.get_final_message()
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", "days"))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "dry"}
        history = RAIN + [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}]
        self.assertTrue(self.ask(messages=history + [{"role": "user", "content": [result]}], tools=[WEATHER]).content)
        with self.assertRaisesRegex(anthropic.BadRequestError, "no tool_use"):
            self.ask(messages=RAIN + [{"role": "user", "content": [result]}], tools=[WEATHER])

    def test_tool_choice(self):
        for choice, name in [({"type": "tool", "name": "wind"}, "wind"),
                             ({"type": "any", "disable_parallel_tool_use": True}, None)]:
            answer = self.ask(tools=[WEATHER, WIND], tool_choice=choice)
            self.assertEqual(answer.stop_reason, "tool_use")
            calls = [block for block in answer.content if block.type == "tool_use"]
            self.assertEqual(len(calls), 1)
            self.assertIn(calls[0].name, [name] if name else ["weather", "wind"])
        none = self.ask(messages=RAIN, tools=[WEATHER], tool_choice={"type": "none"})
        self.assertEqual([block.type for block in none.content], ["text"])
        strict = json.loads(json.dumps({**WEATHER, "strict": True}).replace("Ur", "Eden"))
        self.assertIn(self.ask(messages=RAIN, tools=[strict]).content[0].input["city"], ("Eden", "Haran"))

    def test_assistant_prefill_is_continued(self):
        thinking, text = self.ask(messages=[*WHO, {"role": "assistant", "content": "<think>\nhm, w"}]).content
        self.assertEqual((thinking.thinking, text.text), ("ho", "Noah."))

    def test_content_formats(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}}, "required": ["name"],
                  "additionalProperties": False}
        answer = self.ask(output_config={"format": {"type": "json_schema", "schema": schema}}, temperature=1,
                          extra_body={"seed": 1})
        self.assertEqual(list(json.loads(answer.content[-1].text)), ["name"])

    def test_count_tokens(self):
        asked = {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}
        answer = self.ask(**asked)
        count = self.client.messages.count_tokens(model="thinker", messages=WHO, **asked)
        self.assertEqual(count.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens)
        self.assertEqual(count.input_tokens, len("system: Be brief.\nuser: Who?\nassistant: "))

    def test_errors(self):
        for fields in ({"temperature": -1}, {"max_tokens": 0}, {"messages": []}, {"tools": [{"type": "bash_20250124",
                       "name": "bash"}]}, {"messages": [{"role": "user", "content": [{"type": "image", "source": {
                           "type": "base64", "media_type": "image/png", "data": "x"}}]}]},
                       {"extra_body": {"max_token": 7}}, {"output_config": {"effort": "low"}}):
            with self.assertRaises(anthropic.BadRequestError) as caught:
                self.ask(**fields)
            self.assertEqual(caught.exception.body["type"], "error")
            self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.ask(model="nobody")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")

    def test_api_keys(self):
        by_token = self.open(auth_token=KEY)
        self.assertEqual(by_token.messages.create(**self.fields()).content[-1].text, "Noah.")
        for stranger in (self.open(api_key="sk-stranger-0123456789"), self.open(auth_token="sk-stranger-0123456789")):
            for call in (lambda: stranger.messages.create(**self.fields()),
                         lambda: stranger.messages.count_tokens(model="thinker", messages=WHO)):
                with self.assertRaises(anthropic.AuthenticationError) as caught:
                    call()
                self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")

    def test_a_full_queue_returns_retry_after(self):
        def ask(_):
            try:
                return self.client.messages.create(**self.fields(max_tokens=400, stop_sequences=[], temperature=1,
                                                                 extra_body={"ignore_eos": True}))
            except anthropic.RateLimitError as error:
                return error
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(16)))
        refused = [a for a in answers if isinstance(a, anthropic.RateLimitError)]
        self.assertTrue(refused)
        self.assertGreater(len(answers), len(refused))
        for error in refused:
            self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
            self.assertEqual(error.body["error"]["type"], "rate_limit_error")


if __name__ == "__main__":
    unittest.main()
