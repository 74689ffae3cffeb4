"""OpenAI's Python client, streaming and not, against a served LLM and SSM with API keys."""
import concurrent.futures
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import client_environment  # noqa: E402

if __name__ == "__main__":
    client_environment.enter()
import openai  # noqa: E402
import openai_chat_cases  # noqa: E402
import openai_completion_cases  # noqa: E402
from openai_case import ASK, KEY, TOOLS  # noqa: E402


# One cluster runs the cases of all modules. (Classes that are imported by name would run on their own.)
class OpenAiClientTest(openai_completion_cases.CompletionCases, openai_chat_cases.ChatCases):
    # Embeddings.

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
