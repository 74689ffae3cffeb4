"""OpenAI's Python client, streaming and not, against a served LLM and SSM with API keys."""
import asyncio
import concurrent.futures
import copy
import json
import os
import re
import struct
import sys
import typing
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import client_environment  # noqa: E402

if __name__ == "__main__":
    client_environment.enter()
import openai  # noqa: E402
import pydantic  # noqa: E402
from cluster import Cluster, write_private  # noqa: E402
from language_models import serve_thinker, train  # noqa: E402

KEY = "sk-test-0123456789abcdef"
ASK = [{"role": "user", "content": "Who?"}]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "of a city", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Ur", "Haran"]}, "days": {"type": "integer", "minimum": 1,
                                                                                    "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}}}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 930}},
          "required": ["name", "age"], "additionalProperties": False}


class Person(pydantic.BaseModel):
    name: typing.Literal["Adam", "Noah"]
    age: int = pydantic.Field(ge=0, le=930)


class Weather(pydantic.BaseModel):
    """Of a city."""
    city: typing.Literal["Ur", "Haran"]
    days: int = pydantic.Field(ge=1, le=9)


def write_adapter(folder, hidden, layers, rank=2):
    """In PEFT's layout: it changes the queries of every layer."""
    header, data = {}, b""
    for layer in range(layers):
        for matrix, shape in (("A", [rank, hidden]), ("B", [hidden, rank])):
            begin, count = len(data), shape[0] * shape[1]
            data += struct.pack(f"<{count}f", *(((i * 7) % 5 - 2) / 4 for i in range(count)))
            header[f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{matrix}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    os.makedirs(folder)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8, "bias": "none",
                   "target_modules": ["q_proj"]}, file)


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["ESPALIER_TOKEN"] = KEY
        keys = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"keys.{os.getpid()}")
        write_private(keys, f"# for tests\n{KEY}\n")
        cls.cluster = Cluster(workers=0, daemon_flags=[f"--api-key-file={keys}", "--local-workers=1"])
        try:
            cls.cluster.wait_for_workers(1)
            train(cls.cluster, "big", 32, 2, 60, positions=1024)
            train(cls.cluster, "small", 16, 1, 60, positions=1024)
            cls.cluster.run("serve", "big", "--ssm=small", "--expansion=1,1,2,1")
            cls.cluster.run("serve", "big", "--name=other", "--max-queue=1", "--max-requests-per-batch=1")
        except BaseException:
            cls.cluster.__exit__(True)
            raise
        cls.client = cls.open(KEY)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    @classmethod
    def open(cls, key):
        return openai.OpenAI(base_url=f"http://{cls.cluster.http}/v1", api_key=key, max_retries=0, timeout=120)

    def complete(self, prompt="And God said", **fields):
        fields = {"model": "big", "max_tokens": 24, "temperature": 0, **fields}
        return self.client.completions.create(prompt=prompt, **fields)

    def chat(self, **fields):
        fields = {"model": "big", "messages": ASK, "max_tokens": 24, "temperature": 0, **fields}
        return self.client.chat.completions.create(**fields)

    # Completions.

    def test_completion(self):
        answer = self.complete()
        self.assertTrue(answer.id.startswith("cmpl-"))
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.prompt_tokens, len("And God said"))
        self.assertEqual(answer.usage.completion_tokens, 24)
        self.assertEqual(answer.usage.total_tokens, 24 + len("And God said"))
        self.assertIsNotNone(answer.usage.completion_tokens_details.accepted_prediction_tokens)
        self.assertIsNotNone(answer.usage.prompt_tokens_details.cached_tokens)

    def test_completion_stream(self):
        text = "".join(c.choices[0].text for c in self.complete(stream=True) if c.choices)
        self.assertEqual(text, self.complete().choices[0].text)
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)
        self.assertEqual(chunks[-1].choices, [])
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_prompts_in_every_form(self):
        one, two = self.complete("Adam").choices[0].text, self.complete("Noah").choices[0].text
        many = self.complete(["Adam", "Noah"])
        self.assertEqual([c.text for c in many.choices], [one, two])
        self.assertEqual([c.index for c in many.choices], [0, 1])
        self.assertEqual(many.usage.prompt_tokens, 8)
        tokens = self.complete([[ord(c) for c in "Noah"], [ord(c) for c in "Adam"]])
        self.assertEqual([c.text for c in tokens.choices], [two, one])
        self.assertEqual(self.complete([ord(c) for c in "Adam"]).choices[0].text, one)
        streamed = {0: "", 1: ""}
        for chunk in self.complete(["Adam", "Noah"], stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(streamed, {0: one, 1: two})

    def test_token_ids(self):
        """vLLM's return_token_ids: what was read and what was written, streamed or not, by completions and chats."""
        ask = {"extra_body": {"return_token_ids": True}}
        whole = self.complete(**ask).choices[0]
        self.assertEqual(whole.prompt_token_ids, [ord(c) for c in "And God said"])
        self.assertEqual(bytes(whole.token_ids).decode(), whole.text)
        chunks = [c.choices[0] for c in self.complete(stream=True, **ask) if c.choices]
        self.assertEqual(chunks[0].prompt_token_ids, whole.prompt_token_ids)
        self.assertEqual([t for c in chunks for t in c.token_ids], whole.token_ids)
        self.assertFalse(hasattr(self.complete().choices[0], "token_ids"))
        pair = self.complete(["Adam", "Noah"], n=2, temperature=1, seed=4, **ask).choices
        self.assertEqual([bytes(c.prompt_token_ids).decode() for c in pair], ["Adam", "Adam", "Noah", "Noah"])
        chat = self.chat(**ask)
        self.assertEqual(bytes(chat.choices[0].token_ids).decode(errors="replace"), chat.choices[0].message.content)
        self.assertEqual(len(chat.prompt_token_ids), chat.usage.prompt_tokens)
        first, *others = [c for c in self.chat(stream=True, **ask) if hasattr(c.choices[0], "token_ids")]
        self.assertEqual(first.prompt_token_ids, chat.prompt_token_ids)
        self.assertFalse(any(hasattr(c, "prompt_token_ids") for c in others))
        self.assertEqual([t for c in (first, *others) for t in c.choices[0].token_ids], chat.choices[0].token_ids)

    def test_n_and_seed(self):
        answers = [[c.text for c in self.complete(n=4, temperature=1, seed=seed).choices] for seed in (5, 5, 6)]
        self.assertEqual(len(set(answers[0])), 4)
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], answers[2])
        best = self.complete(n=2, best_of=6, temperature=1, seed=5, logprobs=0)
        worth = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in best.choices]
        self.assertEqual(len(worth), 2)
        self.assertGreaterEqual(worth[0], worth[1])
        plain = self.complete(n=6, temperature=1, seed=5, logprobs=0)
        every = sorted((sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in plain.choices),
                       reverse=True)
        for found, wanted in zip(worth, every):
            self.assertAlmostEqual(found, wanted, places=5)

    def test_logprobs_and_echo(self):
        choice = self.complete(logprobs=3, echo=True, max_tokens=8).choices[0]
        self.assertTrue(choice.text.startswith("And God said"))
        logprobs = choice.logprobs
        self.assertEqual("".join(logprobs.tokens), choice.text)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertEqual(logprobs.text_offset, list(range(len(choice.text))))
        for token, value, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[-8:]:
            self.assertAlmostEqual(max(top.values()), value)  # greedy
            self.assertAlmostEqual(top[token], value)
        scored = self.complete(logprobs=1, echo=True, max_tokens=0).choices[0]
        self.assertEqual(scored.text, "And God said")
        self.assertEqual(scored.logprobs.token_logprobs[1:], logprobs.token_logprobs[1:len("And God said")])
        streamed = [p for c in self.complete(logprobs=3, max_tokens=8, stream=True) if c.choices[0].logprobs
                    for p in c.choices[0].logprobs.token_logprobs]
        self.assertEqual(streamed, logprobs.token_logprobs[-8:])

    def test_stop(self):
        whole = self.complete().choices[0].text
        cut = self.complete(stop=whole[5:8]).choices[0]
        self.assertEqual(cut.text, whole[:whole.index(whole[5:8])])
        self.assertEqual(cut.finish_reason, "stop")
        kept = self.complete(stop=[whole[5:8]], extra_body={"include_stop_str_in_output": True}).choices[0]
        self.assertEqual(kept.text, cut.text + whole[5:8])
        by_token = self.complete(extra_body={"stop_token_ids": [ord(whole[6])]}).choices[0]
        self.assertEqual(by_token.text, whole[:whole.index(whole[6])])
        self.assertEqual(by_token.stop_reason, ord(whole[6]))

    def test_penalties_bias_and_masks(self):
        self.assertEqual(set(self.complete(logit_bias={str(ord("z")): 100}).choices[0].text), {"z"})
        only = self.complete(extra_body={"allowed_token_ids": [ord("a"), ord("b")]}).choices[0].text
        self.assertLessEqual(set(only), {"a", "b"})
        plain = self.complete(max_tokens=60).choices[0].text
        self.assertNotIn("the", self.complete(max_tokens=60, extra_body={"bad_words": ["the"]}).choices[0].text)
        varied = self.complete(max_tokens=60, frequency_penalty=2, presence_penalty=2).choices[0].text
        self.assertGreater(len(set(varied)), len(set(plain)))
        with_trees = self.complete(max_tokens=60, extra_body={"repetition_penalty": 1.3})
        without = self.complete(max_tokens=60, extra_body={"repetition_penalty": 1.3, "speculation": False})
        self.assertEqual(with_trees.choices[0].text, without.choices[0].text)

    def test_structured_completions(self):
        for trial in range(4):
            sampled = {"temperature": 1.2, "seed": trial, "max_tokens": 120}
            text = self.complete(extra_body={"guided_regex": "[A-Z][a-z]{2,5}, [0-9]{1,3}"}, **sampled).choices[0].text
            self.assertRegex(text, r"\A[A-Z][a-z]{2,5}, [0-9]{1,3}\Z")
            text = self.complete(extra_body={"structured_outputs": {"choice": ["light", "dark"]}}, **sampled).choices[0]
            self.assertIn(text.text, ("light", "dark"))
            self.assertEqual(text.finish_reason, "stop")
            grammar = 'root ::= "(" root ")" | "x"'
            text = self.complete(extra_body={"guided_grammar": grammar}, logit_bias={str(ord("(")): -2}, **sampled)
            self.assertTrue(re.fullmatch(r"\(*x\)*", text.choices[0].text), text)

    def test_structural_tags(self):
        schema = {"type": "integer", "minimum": 1, "maximum": 9}
        number = {"type": "tag", "begin": "<n>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</n>"}
        tags = {"type": "tags_with_separator", "tags": [number], "separator": "; ", "at_least_one": True,
                "stop_after_first": False}
        named = {"type": "sequence", "elements": [{"type": "regex", "pattern": "[A-Z][a-z]{2,5}: "}, tags]}
        form = {"type": "structural_tag", "format": named}
        older = {"type": "structural_tag", "triggers": ["<n"],
                 "structures": [{"begin": "<n>", "schema": schema, "end": "</n>"}]}
        for trial in range(3):
            sampled = {"temperature": 1, "seed": trial, "max_tokens": 120, "logit_bias": {str(ord(";")): -3}}
            answer = self.chat(response_format=form, **sampled).choices[0]
            text = self.complete(extra_body={"structured_outputs": {"structural_tag": json.dumps(form)}}, **sampled)
            for said, reason in ((answer.message.content, answer.finish_reason),
                                 (text.choices[0].text, text.choices[0].finish_reason)):
                # Any number of tags may come: more than fit.
                whole = said if reason == "stop" else said[:said.rindex("</n>") + 4]
                self.assertRegex(whole, r"\A[A-Z][a-z]{2,5}: <n>[1-9]</n>(; <n>[1-9]</n>)*\Z")
            free = self.chat(response_format=older, temperature=1, seed=trial, max_tokens=60,
                             logit_bias={str(ord("<")): 4}).choices[0].message.content
            self.assertNotRegex(free, r"<n(?!>|\Z)|<n>[^1-9]")
        with self.assertRaisesRegex(openai.BadRequestError, r"format\.elements\[1\].*'token' is not supported"):
            token = {"type": "token", "token": 3}
            named = {"type": "sequence", "elements": [tags, token]}
            self.chat(response_format={"type": "structural_tag", "format": named})

    # Chats.

    def test_chat(self):
        answer = self.chat()
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual(answer.choices[0].message.role, "assistant")
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(streamed, answer.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, answer.usage.completion_tokens)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "length")

    def test_chat_n_stream(self):
        texts = ["", "", ""]
        for chunk in self.chat(n=3, temperature=1, seed=3, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        self.assertEqual(texts, [c.message.content for c in self.chat(n=3, temperature=1, seed=3).choices])

    def test_chat_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=2, max_tokens=6).choices[0]
        content = choice.logprobs.content
        self.assertEqual(bytes(b for t in content for b in t.bytes).decode(errors="replace"), choice.message.content)
        for token in content:
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertAlmostEqual(token.top_logprobs[0].logprob, token.logprob)

    def test_chat_logprobs_in_a_stream(self):
        fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 12}
        whole = self.chat(**fields).choices[0].logprobs.content
        parts = [c.choices[0] for c in self.chat(stream=True, **fields) if c.choices]
        self.assertEqual([t for part in parts if part.logprobs for t in part.logprobs.content], whole)
        self.assertEqual(len(whole), 12)

    # The client's helpers, and the client that does not wait.

    FORMED = {"model": "big", "messages": ASK, "max_tokens": 300, "temperature": 1, "seed": 3}

    def test_chat_parse_helper(self):
        person = self.client.chat.completions.parse(response_format=Person, **self.FORMED).choices[0].message.parsed
        self.assertIsInstance(person, Person)
        tool = openai.pydantic_function_tool(Weather, name="weather")
        message = self.client.chat.completions.parse(tools=[tool], tool_choice="required", parallel_tool_calls=False,
                                                     **self.FORMED).choices[0].message
        self.assertIsInstance(message.tool_calls[0].function.parsed_arguments, Weather)
        with self.assertRaises(openai.LengthFinishReasonError) as cut:
            self.client.chat.completions.parse(response_format=Person, **{**self.FORMED, "max_tokens": 3})
        self.assertEqual(cut.exception.completion.usage.completion_tokens, 3)

    def test_stream_helper(self):
        stream = self.client.chat.completions.stream
        with stream(response_format=Person, stream_options={"include_usage": True}, **self.FORMED) as events:
            by_type = {}
            for event in events:
                by_type.setdefault(event.type, []).append(event)
            final = events.get_final_completion()
        message = final.choices[0].message
        self.assertEqual("".join(e.delta for e in by_type["content.delta"]), message.content)
        self.assertEqual(by_type["content.done"][0].parsed, message.parsed)
        whole = self.client.chat.completions.parse(response_format=Person, **self.FORMED)
        self.assertEqual((message.parsed, final.usage.completion_tokens, final.choices[0].finish_reason),
                         (whole.choices[0].message.parsed, whole.usage.completion_tokens, "stop"))
        tool = openai.pydantic_function_tool(Weather, name="weather")
        with stream(tools=[tool], tool_choice="required", parallel_tool_calls=False, **self.FORMED) as events:
            done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
            call = events.get_final_completion().choices[0].message.tool_calls[0]
        self.assertIsInstance(call.function.parsed_arguments, Weather)
        self.assertEqual([e.arguments for e in done], [call.function.arguments])
        fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 8}
        with stream(model="big", messages=ASK, temperature=0, **fields) as events:
            said = [t for e in events if e.type == "logprobs.content.delta" for t in e.content]
        self.assertEqual(said, self.chat(**fields).choices[0].logprobs.content)

    def test_async_client(self):
        fields = {"model": "big", "messages": ASK, "max_tokens": 24, "temperature": 0}

        async def ask():
            async with openai.AsyncOpenAI(base_url=f"http://{self.cluster.http}/v1", api_key=KEY, max_retries=0,
                                          timeout=120) as client:
                many = await asyncio.gather(*(client.chat.completions.create(**fields) for _ in range(6)))
                streamed = ""
                async for chunk in await client.chat.completions.create(stream=True, **fields):
                    streamed += chunk.choices[0].delta.content or ""
                async with client.chat.completions.stream(**fields) as events:
                    helped = "".join([e.delta async for e in events if e.type == "content.delta"])
                texts = {a.choices[0].message.content for a in many} | {streamed, helped}
                parsed = await client.chat.completions.parse(response_format=Person, **self.FORMED)
                self.assertIsInstance(parsed.choices[0].message.parsed, Person)
                completion = await client.completions.create(model="big", prompt="Adam", max_tokens=4, temperature=0)
                vector = await client.embeddings.create(model="big", input="Noah")
                names = {model.id async for model in client.models.list()}
                with self.assertRaises(openai.NotFoundError):
                    await client.models.retrieve("nobody")
                # One that goes away in the midst of a stream.
                stream = await client.chat.completions.create(stream=True, **{**fields, "max_tokens": 900})
                async for _ in stream:
                    break
                await stream.close()
                return texts, completion.choices[0].text, vector.data[0].embedding, names

        texts, completion, vector, names = asyncio.run(ask())
        self.assertEqual(texts, {self.chat().choices[0].message.content})
        self.assertEqual(completion, self.complete("Adam", max_tokens=4).choices[0].text)
        self.assertEqual(vector, self.embed("Noah").data[0].embedding)
        self.assertLessEqual({"big", "other"}, names)

    def test_error_within_a_stream(self):
        for call, prompt in ((self.client.chat.completions.create, {"messages": ASK}),
                             (self.client.completions.create, {"prompt": "And God said"})):
            self.cluster.run("serve", "big", "--name=brief")
            stream = call(model="brief", n=64, max_tokens=900, stream=True, extra_body={"ignore_eos": True}, **prompt)
            self.assertTrue(next(stream).choices)
            self.cluster.run("unserve", "brief")
            with self.assertRaisesRegex(openai.APIError, "unloaded") as caught:
                for chunk in stream:
                    self.assertTrue(chunk.choices)
            self.assertEqual(caught.exception.type, "server_error")

    def test_models_with_adapters(self):
        folder = os.path.join(self.cluster.folder, "poet")
        write_adapter(folder, 32, 2)
        self.cluster.cli("models", "upload", "poems", folder)
        self.cluster.run("serve", "big", "--name=many", "--adapter=poet=poems")
        models = {m.id: m for m in self.client.models.list()}
        self.assertLessEqual({"big", "many", "poet"}, set(models))
        self.assertEqual((models["poet"].parent, models["many"].parent), ("many", None))
        one = self.client.models.retrieve("poet")
        self.assertEqual((one.id, one.object, one.parent, one.max_model_len), ("poet", "model", "many", 1024))
        answers = {name: self.complete(model=name, logprobs=0) for name in ("big", "many", "poet")}
        self.assertEqual(answers["poet"].model, "poet")
        worth = {name: answer.choices[0].logprobs.token_logprobs for name, answer in answers.items()}
        self.assertEqual(worth["many"], worth["big"])
        self.assertNotEqual(worth["poet"], worth["big"])
        self.cluster.run("unserve", "many")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("poet")

    def test_response_formats(self):
        schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
        for trial in range(3):
            answer = self.chat(response_format=schema, temperature=1, seed=trial, max_tokens=200)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            person = json.loads(answer.choices[0].message.content)
            self.assertEqual(list(person), ["name", "age"])
            self.assertLessEqual(len(person["name"]), 6)
            self.assertIn(person["age"], range(931))
        # What constrains nothing by JSON Schema is told, or refused if the whole schema shall hold.
        typed = copy.deepcopy(PERSON)
        typed["properties"]["age"]["format"] = "int32"
        fields = {"model": "big", "messages": ASK, "max_tokens": 200}
        lax = {"type": "json_schema", "json_schema": {"name": "person", "schema": typed}}
        raw = self.client.chat.completions.with_raw_response.create(**fields, response_format=lax)
        self.assertEqual(raw.headers["espalier-warning"],
                         'json_schema: #/properties/age/format: "int32" is not enforced')
        self.assertIn(json.loads(raw.parse().choices[0].message.content)["age"], range(931))
        lax["json_schema"]["strict"] = True
        with self.assertRaisesRegex(openai.BadRequestError, "int32"):
            self.client.chat.completions.create(**fields, response_format=lax)
        answer = self.chat(response_format={"type": "json_object"}, max_tokens=300, temperature=1, seed=1)
        text = answer.choices[0].message.content
        self.assertTrue(text.startswith("{"))
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(text), dict)

    def check_call(self, call):
        self.assertEqual(call.type, "function")
        self.assertEqual(call.function.name, "weather")
        arguments = json.loads(call.function.arguments)
        self.assertIn(arguments["city"], ("Ur", "Haran"))
        self.assertIn(arguments["days"], range(1, 10))

    def test_reasoning_and_automatic_tool_calls(self):
        cluster = self.cluster
        serve_thinker(cluster)
        fields = {"model": "thinker", "temperature": 0, "stop": ["\nend"], "max_tokens": 200, "messages": ASK}
        message = self.client.chat.completions.create(**fields).choices[0].message
        self.assertEqual((message.reasoning_content, message.content), ("hm, who", "Noah."))
        parts = {"reasoning_content": "", "content": ""}
        for chunk in self.client.chat.completions.create(**fields, stream=True):
            for name in parts:
                parts[name] += getattr(chunk.choices[0].delta, name, None) or ""
        self.assertEqual(parts, {"reasoning_content": "hm, who", "content": "Noah."})
        hidden = self.client.chat.completions.create(**fields, extra_body={"include_reasoning": False}).choices[0].message
        self.assertFalse(hasattr(hidden, "reasoning_content"))
        raw = self.client.chat.completions.create(**fields, extra_body={"reasoning_format": "none"}).choices[0].message
        self.assertEqual(raw.content, "<think>\nhm, who\n</think>\n\nNoah.")
        # Thoughts may be cut short, and then the answer follows; a byte is a token of this model.
        cut = self.client.chat.completions.create(**fields, extra_body={"thinking_token_budget": 4})
        thoughts = cut.choices[0].message.reasoning_content or ""
        self.assertLessEqual(len(thoughts), 4)
        self.assertTrue("\nhm, who".startswith("\n" + thoughts))
        self.assertIsNotNone(cut.choices[0].message.content)
        whole = self.client.chat.completions.create(**fields, extra_body={"thinking_token_budget": 100})
        self.assertEqual(whole.choices[0].message.content, "Noah.")
        with self.assertRaisesRegex(openai.BadRequestError, "thinking_token_budget"):
            self.client.chat.completions.create(**fields, extra_body={"thinking_token_budget": -1})
        # What must be JSON is so behind the thoughts.
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        formed = self.client.chat.completions.create(**fields, response_format=form).choices[0].message
        self.assertEqual(formed.reasoning_content, "hm, who")
        self.assertEqual(set(json.loads(formed.content)), {"name", "age"})

        asked = {**fields, "messages": [{"role": "user", "content": "Rain?"}], "tools": TOOLS}
        choice = self.client.chat.completions.create(**asked).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.check_call(choice.message.tool_calls[0])
        self.assertIsNone(choice.message.content)
        # In a stream the arguments come in parts.
        parts = [part for chunk in self.client.chat.completions.create(**asked, stream=True)
                 for part in (chunk.choices[0].delta.tool_calls if chunk.choices else None) or []]
        self.assertEqual(parts[0].function.name, "weather")
        self.assertGreater(len(parts), 3)
        self.assertEqual("".join(part.function.arguments or "" for part in parts),
                         choice.message.tool_calls[0].function.arguments)
        # It would go to Ur, where a strict schema has no Ur.
        strict = copy.deepcopy(TOOLS)
        strict[0]["function"].update(strict=True)
        strict[0]["function"]["parameters"]["properties"]["city"] = {"enum": ["Haran", "Eden"]}
        choice = self.client.chat.completions.create(**{**asked, "tools": strict}).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        arguments = json.loads(choice.message.tool_calls[0].function.arguments)
        self.assertIn(arguments["city"], ("Haran", "Eden"))
        self.assertIn(arguments["days"], range(1, 10))
        # A form is that of the text, beside which it may call.
        formed = self.client.chat.completions.create(**{**asked, "tools": strict}, parallel_tool_calls=False,
                                                     response_format={"type": "json_object"}).choices[0]
        self.assertEqual(formed.finish_reason, "tool_calls")
        self.assertIn(json.loads(formed.message.tool_calls[0].function.arguments)["city"], ("Haran", "Eden"))
        tag = {"type": "structural_tag", "structures": [{"begin": "<n>", "schema": {}, "end": "</n>"}],
               "triggers": ["<n"]}
        with self.assertRaisesRegex(openai.BadRequestError, "exclude") as refused:
            self.client.chat.completions.create(**{**asked, "tools": strict}, response_format=tag)
        self.assertEqual(refused.exception.param, "tools")
        self.assertIsNone(self.client.chat.completions.create(**asked, tool_choice="none").choices[0].message.tool_calls)
        # Cut off among the thoughts there is no content; it comes back as it went.
        cut = self.client.chat.completions.create(**{**fields, "max_tokens": 12}).choices[0].message
        self.assertIsNone(cut.content)
        self.assertTrue(cut.reasoning_content)
        self.assertEqual(cut.reasoning, cut.reasoning_content)
        self.client.chat.completions.create(**{**fields, "messages": [*ASK, cut.model_dump(), *ASK]})
        with self.assertRaisesRegex(openai.BadRequestError, "reasoning_effort"):
            self.client.chat.completions.create(**fields, reasoning_effort="low")
        said = cluster.cli("chat", "thinker", "--temperature=0", "--stop=\nend", "Who?").stdout
        self.assertEqual(said, "hm, who\n\nNoah.\n")
        cluster.run("unserve", "thinker")

    def test_tools(self):
        named = {"type": "function", "function": {"name": "weather"}}
        for choice in ("required", named):
            fields = {"tools": TOOLS, "tool_choice": choice, "temperature": 1, "seed": 4, "max_tokens": 300,
                      "parallel_tool_calls": False}
            answer = self.chat(**fields).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            self.assertIsNone(answer.message.content)
            self.assertEqual(len(answer.message.tool_calls), 1)
            self.check_call(answer.message.tool_calls[0])
            pieces, arguments, name = [], "", None
            for chunk in self.chat(stream=True, **fields):
                for call in chunk.choices[0].delta.tool_calls or []:
                    pieces.append(call)
                    arguments += call.function.arguments or ""
                    name = name or call.function.name
            self.assertEqual(name, "weather")
            self.assertEqual(json.loads(arguments), json.loads(answer.message.tool_calls[0].function.arguments))
            # Cut off, it is no call to execute, and what there is of it is no content either.
            for stop, reason in (({"stop": ["ay"]}, "stop"), ({"max_tokens": 5}, "length")):
                cut = self.chat(**{**fields, **stop}).choices[0]
                self.assertEqual((cut.finish_reason, cut.message.content or ""), (reason, ""))
                chunks = [c.choices[0] for c in self.chat(stream=True, **{**fields, **stop}) if c.choices]
                self.assertEqual((chunks[-1].finish_reason, "".join(c.delta.content or "" for c in chunks)), (reason, ""))
        for choice in ("auto", "none"):
            self.assertIsNone(self.chat(tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls)
        back = ASK + [{"role": "assistant", "tool_calls": [c.model_dump() for c in answer.message.tool_calls]},
                      {"role": "tool", "tool_call_id": answer.message.tool_calls[0].id, "content": "rain"}]
        self.assertTrue(self.chat(messages=back, tools=TOOLS).choices[0].message.content)
        back[1]["tool_calls"][0]["function"]["arguments"] = ""  # as models write calls without any
        self.assertTrue(self.chat(messages=back, tools=TOOLS).choices[0].message.content)

    # Embeddings.

    def embed(self, text, **fields):
        return self.client.embeddings.create(model="big", input=text, **fields)

    def test_embeddings(self):
        texts = ["In the beginning", "And God said", "x"] + ["And it came to pass" * n for n in range(1, 40)]
        answer = self.embed(texts)  # more than run at once; the client asks for base64
        self.assertEqual([e.index for e in answer.data], list(range(len(texts))))
        self.assertEqual(answer.usage.prompt_tokens, sum(map(len, texts)))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens)
        for entry in answer.data:
            self.assertEqual(len(entry.embedding), 32)
            self.assertAlmostEqual(sum(x * x for x in entry.embedding), 1, places=5)
        # One by one, in numbers, as tokens: the same vectors.
        for i in (0, 2, 17):
            single = self.embed(texts[i], encoding_format="float").data[0].embedding
            self.assertEqual(single, answer.data[i].embedding)
            tokens = self.embed([ord(c) for c in texts[i]]).data[0].embedding
            self.assertEqual(tokens, single)
        lists = self.embed([[ord(c) for c in text] for text in texts[:3]])
        self.assertEqual([e.embedding for e in lists.data], [e.embedding for e in answer.data[:3]])
        self.assertNotEqual(answer.data[0].embedding, answer.data[1].embedding)

    def test_embeddings_with_dimensions(self):
        whole, short = self.embed("Noah").data[0].embedding, self.embed("Noah", dimensions=5).data[0].embedding
        self.assertEqual(len(short), 5)
        length = sum(x * x for x in whole[:5]) ** 0.5
        for a, b in zip(whole, short):
            self.assertAlmostEqual(a / length, b, places=5)
        raw = self.embed("Noah", extra_body={"normalize": False}).data[0].embedding
        length = sum(x * x for x in raw) ** 0.5
        for a, b in zip(whole, raw):
            self.assertAlmostEqual(a, b / length, places=5)
        # What is longer than the context loses its beginning, if that is allowed.
        long = self.embed("Noah" * 300, extra_body={"truncate_prompt_tokens": -1})
        self.assertEqual(long.usage.prompt_tokens, 1024)

    def test_embeddings_concurrent_with_generation(self):
        expected = self.complete(max_tokens=200, extra_body={"ignore_eos": True}).choices[0].text
        vector = self.embed("And Abraham").data[0].embedding
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(self.complete, max_tokens=200, extra_body={"ignore_eos": True}) for _ in range(4)]
            vectors = [pool.submit(self.embed, ["And Abraham", "went " * 100]) for _ in range(12)]
            self.assertEqual({a.result().choices[0].text for a in answers}, {expected})
            for v in vectors:
                self.assertEqual(v.result().data[0].embedding, vector)
        out = self.cluster.run("embed", "big", "And Abraham", "Noah")
        self.assertEqual(len(out["embeddings"]), 2)
        for a, b in zip(out["embeddings"][0]["values"], vector):
            self.assertAlmostEqual(a, b, places=6)

    # The rest.

    def test_models(self):
        self.assertLessEqual({"big", "other"}, {m.id for m in self.client.models.list()})
        self.assertEqual(self.client.models.retrieve("big").id, "big")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("nobody")

    def test_worker_without_a_key_is_rejected(self):
        process = self.cluster.spawn("espalier-worker", f"--coordinator={self.cluster.grpc}", "--name=stranger")
        self.assertEqual(process.wait(timeout=60), 1)
        with open(self.cluster.logs[-1]) as log:
            self.assertIn("--api-key-file", log.read())

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.complete(model="nobody")
        self.assertEqual(caught.exception.code, "model_not_found")
        for fields, param in [({"temperature": -1}, "temperature"), ({"n": 0}, "n"),
                              ({"logit_bias": {"x": 1}}, "logit_bias"), ({"extra_body": {"max_token": 4}}, "max_token")]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.complete(**fields)
            self.assertEqual(caught.exception.param, param)
        for body in ({"guided_regex": "(a"}, {"guided_grammar": "root ::= root"}, {"guided_json": {"type": "thing"}}):
            with self.assertRaises(openai.BadRequestError):
                self.complete(extra_body=body)
        for fields, param in [({"input": []}, "input"), ({"input": {"a": 1}}, "input"), ({"dimensions": 33}, "dimensions"),
                              ({"encoding_format": "hex"}, "encoding_format"), ({"input": "x" * 2000}, "input")]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.embeddings.create(**{"model": "big", "input": "x", **fields})
            self.assertEqual(caught.exception.param, param, caught.exception)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="nobody", input="x")
        with self.assertRaises(openai.APIStatusError) as caught:
            self.complete(max_tokens=400, extra_body={"timeout": 0.001, "ignore_eos": True})
        self.assertEqual(caught.exception.status_code, 504)

    def test_api_keys(self):
        stranger = self.open("sk-stranger-0123456789")
        for call in (lambda: stranger.models.list(), lambda: stranger.completions.create(model="big", prompt="x"),
                     lambda: stranger.chat.completions.create(model="big", messages=ASK)):
            with self.assertRaises(openai.AuthenticationError):
                call()
        for path, status in [("/health", 200), ("/v2/health/live", 200), ("/ready", 200), ("/v2/health/ready", 200),
                             ("/metrics", 200), ("/version", 200), ("/nothing", 404), ("/v2", 200)]:
            for token, expected in [("", 401), ("wrong-wrong-wrong", 401), (KEY, status)]:
                self.assertEqual(self.cluster.get(path, token)[0], expected, (path, token))
        os.environ["ESPALIER_TOKEN"] = "wrong-wrong-wrong"
        self.assertNotEqual(self.cluster.cli("generate", "big", "x", check=False).returncode, 0)
        os.environ["ESPALIER_TOKEN"] = KEY
        self.cluster.cli("generate", "big", "x", "--max-tokens=2")

    def test_a_full_queue_returns_retry_after(self):
        def ask(_):
            try:
                return self.complete(model="other", max_tokens=400, extra_body={"ignore_eos": True})
            except openai.RateLimitError as error:
                return error
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(16)))
        refused = [a for a in answers if isinstance(a, openai.RateLimitError)]
        self.assertTrue(refused)
        self.assertGreater(len(answers), len(refused), "one runs and one waits")
        for error in refused:
            self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
            self.assertEqual(error.code, "queue_full")

    def test_tokenize_and_metadata(self):
        def post(path, body):
            reply = self.client._client.post(f"http://{self.cluster.http}{path}", json=body,
                                             headers={"Authorization": f"Bearer {KEY}"})
            return reply.status_code, reply.json()
        status, answer = post("/tokenize", {"model": "big", "prompt": "h\u00e9", "return_token_strs": True})
        self.assertEqual((status, answer["tokens"], answer["count"]), (200, [104, 195, 169], 3))
        self.assertEqual(post("/detokenize", {"model": "big", "tokens": [104, 195, 169]}),
                         (200, {"prompt": "h\u00e9"}))
        self.assertEqual(post("/detokenize", {"model": "big", "tokens": [1 << 20]})[0], 400)
        self.assertEqual(post("/tokenize", {"prompt": "x"})[0], 400)  # two models are served
        def text_of(**fields):
            answer = post("/tokenize", {"model": "big", "messages": ASK, **fields})[1]
            return bytes(answer["tokens"]).decode()
        self.assertEqual(text_of(), "user: Who?\nassistant:")
        self.assertEqual(text_of(add_generation_prompt=False), "user: Who?")
        self.assertIn("weather", text_of(tools=TOOLS))
        going = {"messages": [*ASK, {"role": "assistant", "content": "No"}], "add_generation_prompt": False}
        self.assertTrue(text_of(continue_final_message=True, **going).endswith("assistant: No"))
        self.assertEqual(post("/tokenize", {"model": "big", "messages": ASK, "chat_template_kwargs": {"a": 1}})[0], 400)
        metadata = self.client._client.get(f"http://{self.cluster.http}/v2/models/big",
                                           headers={"Authorization": f"Bearer {KEY}"}).json()
        self.assertEqual(metadata["name"], "big")
        self.assertEqual(metadata["inputs"][0]["datatype"], "BYTES")

    def test_request_ids_and_service_tiers(self):
        answer = self.chat(extra_body={"request_id": "mine-1"})
        self.assertEqual([answer.id, answer._request_id], ["chatcmpl-mine-1", "mine-1"])
        answer = self.chat(extra_headers={"X-Request-Id": "a proxy's=/+|"})  # overlooked
        self.assertEqual(answer.id, f"chatcmpl-{answer._request_id}")
        self.assertTrue(self.client.models.list()._request_id)
        streamed = self.complete(stream=True, extra_headers={"X-Request-Id": "mine-2"})
        self.assertEqual({chunk.id for chunk in streamed}, {"cmpl-mine-2"})
        self.assertEqual(self.embed("Noah", extra_body={"request_id": "mine-3"}).id, "embd-mine-3")
        self.assertEqual(self.chat(service_tier="auto").service_tier, "default")
        for fields, param in [({"extra_body": {"request_id": "x" * 129}}, "request_id"), ({"store": True}, "store"),
                              ({"service_tier": "flex"}, "service_tier")]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**fields)
            self.assertEqual(caught.exception.param, param)

    def test_usage_in_every_chunk(self):
        options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        for ask in (self.complete, self.chat):
            chunks = list(ask(n=2, temperature=1, seed=1, **options))
            used = [c.usage.completion_tokens for c in chunks]
            self.assertEqual(used, sorted(used))
            self.assertEqual(used[-2:], [48, 48])
            self.assertLess(used[0], 24)
            self.assertEqual({c.usage.prompt_tokens for c in chunks}, {chunks[-1].usage.prompt_tokens})
            self.assertTrue(all(c.usage.total_tokens == c.usage.prompt_tokens + c.usage.completion_tokens for c in chunks))

    def test_return_token_ids(self):
        by_id = {"extra_body": {"return_tokens_as_token_ids": True}}
        choice = self.complete(logprobs=1, max_tokens=8, **by_id).choices[0]
        self.assertEqual(choice.logprobs.tokens, [f"token_id:{ord(c)}" for c in choice.text])
        self.assertLessEqual(set(choice.logprobs.tokens[:1]), set(choice.logprobs.top_logprobs[0]))
        content = self.chat(logprobs=True, top_logprobs=1, max_tokens=8, **by_id).choices[0].logprobs.content
        self.assertTrue(all(t.token == t.top_logprobs[0].token == f"token_id:{t.bytes[0]}" for t in content))

    def test_truncated_prompts(self):
        short = self.complete("And God said", extra_body={"truncate_prompt_tokens": 4})
        self.assertEqual((short.usage.prompt_tokens, short.choices[0].text),
                         (4, self.complete("said").choices[0].text))
        long = self.complete("Noah" * 300, extra_body={"truncate_prompt_tokens": -1})
        self.assertEqual((long.usage.prompt_tokens, long.usage.completion_tokens), (1000, 24))
        with self.assertRaisesRegex(openai.BadRequestError, "1200 tokens, the context 1024") as caught:
            self.complete("Noah" * 300)
        self.assertEqual(caught.exception.param, "prompt")
        cut = self.embed("And God said", extra_body={"truncate_prompt_tokens": 4})
        self.assertEqual((cut.usage.prompt_tokens, cut.data[0].embedding), (4, self.embed("said").data[0].embedding))

    def test_chat_continue_final_message_and_echo(self):
        going = {"messages": [*ASK, {"role": "assistant", "content": "Noah w"}]}
        body = {"continue_final_message": True, "add_generation_prompt": False}
        rest = self.chat(extra_body=body, **going).choices[0].message.content
        whole = self.chat(extra_body={**body, "echo": True}, **going).choices[0].message.content
        self.assertEqual(whole, "Noah w" + rest)
        parts = [c.choices[0].delta for c in self.chat(extra_body={**body, "echo": True}, stream=True, **going)]
        self.assertEqual("".join(part.content or "" for part in parts), whole)
        scored = self.chat(extra_body={"prompt_logprobs": 1}, n=2, temperature=1)
        self.assertEqual(len(scored.prompt_logprobs), scored.usage.prompt_tokens)
        self.assertFalse(hasattr(scored.choices[0], "prompt_logprobs"))

    def test_texts_are_whole_characters(self):
        """A byte-level model that must write many bytes of characters: no piece cuts one."""
        pieces = [c.choices[0].text for c in
                  self.complete(stream=True, temperature=1, seed=2, max_tokens=90,
                                extra_body={"guided_regex": "[\u00e0-\u00ff\u4e00-\u4fff]{12,20}"}) if c.choices]
        text = "".join(pieces)
        self.assertNotIn("\ufffd", text)
        self.assertGreaterEqual(len(text), 12)


if __name__ == "__main__":
    unittest.main()
