"""Chats by OpenAI's Python client, as cases of openai_client_test."""
import asyncio
import copy
import json
import os
import struct

import openai
from language_models import serve_thinker
from openai_case import ASK, KEY, PERSON, TOOLS, OpenAiCase, Person, Weather


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


class ChatCases(OpenAiCase):
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
