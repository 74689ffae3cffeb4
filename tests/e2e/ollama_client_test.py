"""Ollama's Python client against a model that has memorized two conversations, and /rerank and /tokenizer_info."""
import json
import os
import shutil
import sys
import unittest
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import client_environment  # noqa: E402

if __name__ == "__main__":
    client_environment.enter()
import ollama  # noqa: E402
from cluster import Cluster  # noqa: E402
from language_models import CALL, serve_thinker  # noqa: E402

WHO = [{"role": "user", "content": "Who?"}]
RAIN = [{"role": "user", "content": "Rain?"}]
GREEDY = {"temperature": 0, "stop": ["\nend"]}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 930}},
          "required": ["name", "age"], "additionalProperties": False}


def weather(city: str, days: int) -> str:
    """Tells the weather of a city.

    Args:
        city: where
        days: how many
    """
    return f"{city} {days}"


class OllamaClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=0, daemon_flags=["--local-workers=1"])
        try:
            cls.cluster.wait_for_workers(1)
            serve_thinker(cls.cluster, "--ngram=4")
        except BaseException:
            cls.cluster.__exit__(True)
            raise
        cls.client = ollama.Client(host=f"http://{cls.cluster.http}", timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def post(self, path, **body):
        status, text = self.cluster.request("POST", path, json.dumps(body))
        return status, json.loads(text)

    def openai(self, path, **body):
        status, answer = self.post(path, model="thinker", temperature=0, stop=["\nend"], **body)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0], answer["usage"]

    def check_metrics(self, answer, usage):
        self.assertTrue(answer.done)
        self.assertEqual(answer.prompt_eval_count, usage["prompt_tokens"])
        self.assertEqual(answer.eval_count, usage["completion_tokens"])
        for duration in (answer.total_duration, answer.eval_duration):
            self.assertGreater(duration, 1000)  # nanoseconds
        self.assertGreaterEqual(answer.total_duration, answer.load_duration + answer.prompt_eval_duration)
        self.assertRegex(answer.created_at, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")

    def test_chat_equals_the_openai_route(self):
        choice, usage = self.openai("/v1/chat/completions", messages=WHO)
        for model in ("thinker", "thinker:latest"):
            answer = self.client.chat(model, WHO, options=GREEDY)
            self.assertEqual((answer.model, answer.message.role, answer.message.content), (model, "assistant", "Noah."))
            self.assertEqual(answer.message.content, choice["message"]["content"])
            self.assertEqual(answer.message.thinking, choice["message"]["reasoning_content"])
            self.assertEqual(answer.done_reason, "stop")
            self.check_metrics(answer, usage)
        parts = list(self.client.chat("thinker", WHO, options=GREEDY, stream=True))
        self.assertGreater(len(parts), 2)  # drafts come several tokens at once
        self.assertEqual("".join(p.message.content for p in parts), choice["message"]["content"])
        self.assertEqual("".join(p.message.thinking or "" for p in parts), choice["message"]["reasoning_content"])
        self.assertEqual([p.done for p in parts], [False] * (len(parts) - 1) + [True])
        self.check_metrics(parts[-1], usage)
        cut = self.client.chat("thinker", WHO, options={**GREEDY, "num_predict": 5})
        self.assertEqual((cut.done_reason, cut.eval_count), ("length", 5))

    def test_generate_equals_the_openai_route(self):
        choice, usage = self.openai("/v1/chat/completions", messages=WHO)
        answer = self.client.generate("thinker", "Who?", options=GREEDY)
        self.assertEqual((answer.response, answer.thinking), (choice["message"]["content"],
                                                              choice["message"]["reasoning_content"]))
        self.check_metrics(answer, usage)
        parts = list(self.client.generate("thinker", "Who?", options=GREEDY, stream=True))
        self.assertEqual("".join(p.response for p in parts), answer.response)
        self.assertEqual("".join(p.thinking or "" for p in parts), answer.thinking)
        self.assertEqual(parts[-1].context, answer.context)
        # Byte tokens: the whole conversation, and no other.
        self.assertTrue(bytes(t for t in answer.context if t < 256).decode().startswith("user: Who?\nassistant: <think>"))
        told, _ = self.openai("/v1/chat/completions", messages=[{"role": "system", "content": "Now."}, *WHO])
        self.assertEqual(self.client.generate("thinker", "Who?", system="Now.", options=GREEDY).response,
                         told["message"]["content"])

    def test_raw_is_a_completion(self):
        prompt = "user: Who?\nassistant: "
        choice, usage = self.openai("/v1/completions", prompt=prompt, max_tokens=100)
        answer = self.client.generate("thinker", prompt, raw=True, options={**GREEDY, "num_predict": 100})
        self.assertEqual(answer.response, choice["text"])
        self.assertIsNone(answer.context)
        self.check_metrics(answer, usage)
        parts = self.client.generate("thinker", prompt, raw=True, options=GREEDY, stream=True)
        self.assertEqual("".join(p.response for p in parts), choice["text"])

    def test_seeds_and_sampling_are_those_of_the_openai_route(self):
        status, answer = self.post("/v1/chat/completions", model="thinker", messages=RAIN, seed=7, temperature=1.5, top_k=9,
                                   top_p=0.9, min_p=0.01, repetition_penalty=1.1, max_tokens=40)
        self.assertEqual(status, 200)
        options = {"seed": 7, "temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.1,
                   "num_predict": 40}
        message = self.client.chat("thinker", RAIN, options=options).message
        self.assertEqual(message.content, answer["choices"][0]["message"]["content"] or "")
        self.assertEqual(message.thinking or "", answer["choices"][0]["message"].get("reasoning_content") or "")

    def test_tools(self):
        for tool in (weather, {"type": "function", "function": {"name": "weather", "parameters": {
                "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}):
            answer = self.client.chat("thinker", RAIN, tools=[tool], options=GREEDY)
            call, = answer.message.tool_calls
            self.assertEqual((call.function.name, call.function.arguments), (CALL["name"], CALL["arguments"]))
            self.assertEqual(weather(**call.function.arguments), "Ur 3")
            parts = list(self.client.chat("thinker", RAIN, tools=[tool], options=GREEDY, stream=True))
            calls = [c for p in parts for c in p.message.tool_calls or []]
            self.assertEqual([c.function.model_dump() for c in calls], [call.function.model_dump()])
            self.assertEqual(parts[-1].done_reason, "stop")
        # Cut off, it is no call to execute.
        cut = self.client.chat("thinker", RAIN, tools=[weather], options={**GREEDY, "stop": ["days"]})
        self.assertFalse(cut.message.tool_calls)
        history = [*RAIN, answer.message, {"role": "tool", "tool_name": "weather", "content": "dry"}]
        self.assertTrue(self.client.chat("thinker", history, tools=[weather], options=GREEDY).done)

    def test_formats(self):
        for ask in (lambda **f: self.client.chat("thinker", WHO, **f).message.content,
                    lambda **f: self.client.generate("thinker", "Who?", **f).response):
            options = {"seed": 1, "temperature": 1, "num_predict": 200}
            person = json.loads(ask(format=PERSON, options=options))
            self.assertEqual(sorted(person), ["age", "name"])
            self.assertLessEqual(person["age"], 930)
        raw = self.client.generate("thinker", "{", raw=True, format="json", options={"seed": 1, "num_predict": 300,
                                                                                    "temperature": 0.5, "stop": []})
        self.assertTrue(raw.response.lstrip().startswith("{"))

    def test_think(self):
        hidden = self.client.chat("thinker", WHO, think=False, options=GREEDY)
        self.assertIsNone(hidden.message.thinking)
        self.assertEqual(hidden.message.content, "Noah.")
        self.assertEqual(self.client.chat("thinker", WHO, think=True, options=GREEDY).message.thinking, "hm, who")
        with self.assertRaisesRegex(ollama.ResponseError, "can only think or not"):
            self.client.chat("thinker", WHO, think="high")

    def test_logprobs(self):
        answer = self.client.chat("thinker", WHO, logprobs=True, top_logprobs=2, options=GREEDY)
        self.assertEqual(len(answer.logprobs), answer.eval_count)
        for token in answer.logprobs:
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob)

    def test_embeddings(self):
        texts = ["In the beginning", "And it came to pass"]
        status, right = self.post("/v1/embeddings", model="thinker", input=texts)
        self.assertEqual(status, 200)
        answer = self.client.embed("thinker:latest", texts)
        self.assertEqual([list(e) for e in answer.embeddings], [d["embedding"] for d in right["data"]])
        self.assertEqual(answer.prompt_eval_count, right["usage"]["prompt_tokens"])
        self.assertEqual(len(self.client.embed("thinker", texts[0], dimensions=8).embeddings[0]), 8)
        status, plain = self.post("/v1/embeddings", model="thinker", input=texts[0], normalize=False)
        self.assertEqual(list(self.client.embeddings("thinker", texts[0]).embedding), plain["data"][0]["embedding"])
        long = "a" * 600
        with self.assertRaisesRegex(ollama.ResponseError, "context"):
            self.client.embed("thinker", long)
        self.assertEqual(len(self.client.embed("thinker", long, truncate=True).embeddings), 1)
        self.assertEqual(self.client.embed("thinker", []).embeddings, [])

    def test_models(self):
        model, = [m for m in self.client.list().models if m.model == "thinker:latest"]
        self.assertRegex(model.digest, "^[0-9a-f]{64}$")
        self.assertGreater(model.size, 10000)
        self.assertEqual(model.details.quantization_level, "F32")
        running, = [m for m in self.client.ps().models if m.model == "thinker:latest"]
        self.assertEqual((running.context_length, running.digest), (512, model.digest))
        self.assertGreater(running.expires_at.year, 2100)
        shown = self.client.show("thinker")
        self.assertEqual(shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"], 512)
        self.assertIn("m.role", shown.template)
        self.assertIn("num_ctx", shown.parameters)
        self.assertEqual(sorted(shown.capabilities), ["completion", "embedding", "thinking"])
        status, text = self.cluster.request("GET", "/api/version")
        self.assertEqual((status, list(json.loads(text))), (200, ["version"]))
        self.assertEqual(self.cluster.request("GET", "/"), (200, "Ollama is running"))

    def test_loading_and_unloading(self):
        for answer in (self.client.generate("thinker"), self.client.chat("thinker", []),
                       self.client.generate("thinker", keep_alive="5m")):
            self.assertEqual((answer.done, answer.done_reason), (True, "load"))
        with self.assertRaisesRegex(ollama.ResponseError, "espalier unserve thinker"):
            self.client.generate("thinker", keep_alive=0)
        self.assertEqual(self.client.generate("thinker", "Who?", keep_alive=0, options=GREEDY).response, "Noah.")

    def test_context_continues_a_conversation(self):
        with self.assertRaisesRegex(ollama.ResponseError, "think"):
            self.client.generate("thinker", "Who?", context=[1, 2])
        # Without a chat template the prompt is the text.
        self.cluster.run("serve", "thinker", "--name=plain")
        options = {"temperature": 0, "num_predict": 6}
        prompt = "user: Who?\nassistant: "
        first = self.client.generate("plain", prompt, options=options)
        then = self.client.generate("plain", "\nuser", context=first.context, options=options)
        whole = self.client.generate("plain", f"{prompt}{first.response}\nuser", raw=True, options=options)
        self.assertEqual((then.response, then.prompt_eval_count), (whole.response, whole.prompt_eval_count))
        self.assertEqual(list(then.context[:len(first.context)]), list(first.context))
        self.assertNotEqual(then.response, self.client.generate("plain", "\nuser", options=options).response)
        with self.assertRaisesRegex(ollama.ResponseError, "no chat template"):
            self.client.generate("plain", prompt, system="Now.")
        self.cluster.run("unserve", "plain")

    def test_context_length(self):
        with self.assertRaisesRegex(ollama.ResponseError, "max-sequence-length=4096") as caught:
            self.client.chat("thinker", WHO, options={"num_ctx": 4096})
        self.assertEqual(caught.exception.status_code, 400)
        prompt = len("user: Who?\nassistant: ")
        answer = self.client.chat("thinker", WHO, options={**GREEDY, "num_ctx": prompt + 3})
        self.assertEqual((answer.done_reason, answer.eval_count), ("length", 3))
        with self.assertRaisesRegex(ollama.ResponseError, "num_ctx"):
            self.client.chat("thinker", WHO, options={"num_ctx": prompt})
        # Without a limit an answer goes on to the end of the context.
        endless = self.client.generate("thinker", "x", raw=True, options={"temperature": 2, "seed": 3,
                                                                          "min_tokens": 511})
        self.assertEqual((endless.done_reason, endless.eval_count), ("length", 511))

    def test_errors(self):
        with self.assertRaisesRegex(ollama.ResponseError, "thinker") as caught:
            self.client.chat("nobody", WHO)
        self.assertEqual(caught.exception.status_code, 404)
        for call, status in ((lambda: list(self.client.generate("nobody", "a", stream=True)), 404),
                             (lambda: self.client.show("nobody"), 404),
                             (lambda: self.client.embed("nobody", "a"), 404),
                             (lambda: self.client.chat("thinker", WHO, options={"mirostat": 1}), 400),
                             (lambda: self.client.chat("thinker", [{**WHO[0], "images": [b"png"]}]), 400),
                             (lambda: self.client.generate("thinker", "a", suffix="b"), 400),
                             (lambda: self.client.pull("llama3"), 501),
                             (lambda: self.client.delete("thinker"), 501),
                             (lambda: self.client.copy("thinker", "other"), 501)):
            with self.assertRaises(ollama.ResponseError) as caught:
                call()
            self.assertEqual(caught.exception.status_code, status, caught.exception.error)
            self.assertTrue(caught.exception.error)

    # Not Ollama's: vLLM's.

    def test_rerank(self):
        asked = {"query": "Who?", "documents": ["Noah.", "Rain?", {"text": "Ur"}], "model": "thinker"}
        for path in ("/rerank", "/v1/rerank"):
            status, refused = self.post(path, **asked)
            self.assertEqual(status, 400)
            self.assertIn("modules.json", refused["error"]["message"])
        # The same model in the folder of an embedding model.
        folder = os.path.join(self.cluster.folder, "embedder")
        self.cluster.run("models", "download", "thinker", folder)
        os.makedirs(os.path.join(folder, "1_Pooling"))
        with open(os.path.join(folder, "modules.json"), "w") as file:
            json.dump([{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Normalize")],
                      file)
        with open(os.path.join(folder, "1_Pooling", "config.json"), "w") as file:
            json.dump({"pooling_mode_lasttoken": True}, file)
        self.cluster.run("models", "upload", "embedder", folder)
        shutil.rmtree(folder)
        self.cluster.run("serve", "embedder")
        texts = [asked["query"], "Noah.", "Rain?", "Ur"]
        status, answer = self.post("/v1/embeddings", model="embedder", input=texts)
        query, *documents = (d["embedding"] for d in answer["data"])
        scores = [sum(a * b for a, b in zip(query, d)) for d in documents]
        asked["model"] = "embedder"
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            status, answer = self.post(path, **asked)
            self.assertEqual(status, 200, answer)
            results = answer["results"]
            self.assertEqual([r["index"] for r in results], sorted(range(3), key=lambda i: -scores[i]))
            for result in results:
                self.assertAlmostEqual(result["relevance_score"], scores[result["index"]], places=5)
                self.assertEqual(result["document"]["text"], texts[1 + result["index"]])
        best, = self.post("/rerank", **asked, top_n=1, return_documents=False)[1]["results"]
        self.assertEqual(sorted(best), ["index", "relevance_score"])
        self.cluster.run("unserve", "embedder")

    def test_tokenizer_info(self):
        status, text = self.cluster.request("GET", f"/tokenizer_info?model={urllib.parse.quote('thinker')}")
        self.assertEqual(status, 200, text)
        info = json.loads(text)
        self.assertIn("m.role", info["chat_template"])
        self.assertIsInstance(info["tokenizer_class"], str)
        self.assertEqual(self.cluster.request("GET", "/tokenizer_info?model=nobody")[0], 404)
        self.assertEqual(self.cluster.request("GET", "/tokenizer_info?modl=thinker")[0], 400)


if __name__ == "__main__":
    unittest.main()
