"""Equal requests over HTTP and gRPC return equal outputs and errors."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402
from espalier.v1 import inference_pb2 as pb  # noqa: E402
from cluster import Cluster, write_private  # noqa: E402
from grpc_calls import Calls, error_of, use  # noqa: E402
from language_models import train  # noqa: E402

use(pb)
KEY, OTHER_KEY = "the-key-of-one-caller", "the-key-of-another"
SAME_OWNERS_KEY, THIRD_KEY = "the-key-of-anothers-second", "the-key-of-a-third-one"
Code = grpc.StatusCode
# As server/http/openai_error.cc has them.
HTTP_STATUS = {Code.INVALID_ARGUMENT: 400, Code.NOT_FOUND: 404, Code.UNAUTHENTICATED: 401, Code.UNIMPLEMENTED: 501,
               Code.DEADLINE_EXCEEDED: 504, Code.FAILED_PRECONDITION: 400}
TURNS = [{"role": "system", "content": "You know Genesis."}, {"role": "user", "content": "Who built the ark?"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def chat(turns, **fields):
    return pb.ChatPrompt(turns=[pb.ChatTurn(**turn) for turn in turns], **fields)


class GrpcHttpParityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["ESPALIER_TOKEN"] = KEY
        keys = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"keys.{os.getpid()}")
        write_private(keys, f"{KEY}\n{OTHER_KEY} role=infer owner=other\n{SAME_OWNERS_KEY} role=infer owner=other\n{THIRD_KEY} role=infer\n")
        cls.cluster = Cluster(workers=0, daemon_flags=[f"--api-key-file={keys}", "--local-workers=1"])
        try:
            cls.cluster.wait_for_workers(1)
            train(cls.cluster, "big", 32, 2, 60, positions=1024)
            cls.cluster.run("serve", "big", "--ngram=4")
        except BaseException:
            cls.cluster.__exit__(True)
            raise
        cls.rpc = Calls(cls.cluster.grpc, "Inference", KEY)

    @classmethod
    def tearDownClass(cls):
        cls.rpc.close()
        cls.cluster.close()
        del os.environ["ESPALIER_TOKEN"]

    def post(self, path, **body):
        status, text = self.cluster.request("POST", path, json.dumps(body))
        return status, json.loads(text)

    def ok(self, path, **body):
        status, answer = self.post(path, **body)
        self.assertEqual(status, 200, answer)
        return answer

    def generate(self, **fields):
        """The answers by index, and the usage of all."""
        answers, usage, ids = {}, None, set()
        for reply in self.rpc.Generate(pb.GenerateRequest(model="big", **fields)):
            answer = answers.setdefault(reply.index, {"text": "", "tokens": [], "logprobs": [], "prompt": [], "finish": ""})
            answer["text"] += reply.text
            answer["tokens"] += reply.tokens
            answer["logprobs"] += [(t.token, t.logprob, len(t.top)) for t in reply.logprobs]
            answer["prompt"] += reply.prompt_tokens
            answer["finish"] = reply.finish_reason or answer["finish"]
            usage = reply.usage if reply.HasField("usage") else usage
            ids |= {reply.request_id} - {""}
        self.assertEqual(len(ids), 1)
        return [answers[i] for i in sorted(answers)], usage

    def check_answers(self, http, answers, usage, text_of):
        self.assertEqual([text_of(c) for c in http["choices"]], [a["text"] for a in answers])
        self.assertEqual([c["finish_reason"] for c in http["choices"]], [a["finish"] for a in answers])
        self.assertEqual(http["usage"]["prompt_tokens"], usage.prompt_tokens)
        self.assertEqual(http["usage"]["completion_tokens"], usage.completion_tokens)

    def test_completions(self):
        sampled = {"temperature": 1.0, "seed": 7}
        for name, body, fields in [
                ("greedy", {"temperature": 0}, {}),
                ("sampled", {**sampled, "top_p": 0.9, "top_k": 30, "min_p": 0.01},
                 {"sampling": dict(temperature=1, seed=7, has_seed=True, top_p=0.9, top_k=30, min_p=0.01)}),
                ("penalties", {**sampled, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25,
                               "logit_bias": {"101": -100}},
                 {"sampling": dict(temperature=1, seed=7, has_seed=True, repetition_penalty=1.2, presence_penalty=0.5,
                                   frequency_penalty=0.25, logit_bias={101: -100})}),
                ("several", {**sampled, "n": 3}, {"n": 3, "sampling": dict(temperature=1, seed=7, has_seed=True)}),
                ("the best", {**sampled, "n": 1, "best_of": 3},
                 {"n": 1, "best_of": 3, "sampling": dict(temperature=1, seed=7, has_seed=True)}),
                ("stop", {"temperature": 0, "stop": ["e"]}, {"stop": ["e"]}),
                ("no end", {"temperature": 0, "ignore_eos": True, "min_tokens": 5},
                 {"ignore_eos": True, "sampling": dict(min_tokens=5)}),
                ("echo", {"temperature": 0, "echo": True}, {"echo": True}),
                ("regular expression", {**sampled, "guided_regex": "[a-f]{5,9}"},
                 {"structured_output": dict(regex="[a-f]{5,9}"), "sampling": dict(temperature=1, seed=7, has_seed=True)}),
                ("choice", {"temperature": 0, "guided_choice": ["Noah", "Adam"]},
                 {"structured_output": dict(choice=dict(texts=["Noah", "Adam"]))}),
                ("without drafts", {"temperature": 0, "speculation": False}, {"speculation": pb.SPECULATION_OFF})]:
            with self.subTest(name):
                http = self.ok("/v1/completions", model="big", prompt="And God said", max_tokens=24, **body)
                answers, usage = self.generate(text="And God said", max_tokens=24, **fields)
                self.check_answers(http, answers, usage, lambda c: c["text"])

    def test_tokens_and_probabilities(self):
        prompt = [65, 110, 100, 32]
        http = self.ok("/v1/completions", model="big", prompt=prompt, max_tokens=12, temperature=0, logprobs=2,
                       return_token_ids=True)["choices"][0]
        answers, _ = self.generate(tokens=pb.TokenList(ids=prompt), max_tokens=12, logprobs=2, return_prompt_tokens=True)
        self.assertEqual(http["token_ids"], answers[0]["tokens"])
        self.assertEqual(http["prompt_token_ids"], answers[0]["prompt"])
        for ours, (token, logprob, _) in zip(http["logprobs"]["token_logprobs"], answers[0]["logprobs"], strict=True):
            self.assertAlmostEqual(ours, logprob, places=5)

    def test_chats(self):
        for name, body, fields in [
                ("plain", {}, {}),
                ("going on", {"messages": TURNS + [{"role": "assistant", "content": "It was"}],
                              "continue_final_message": True, "add_generation_prompt": False},
                 {"chat": chat(TURNS + [{"role": "assistant", "content": "It was"}], continue_final_message=True)}),
                ("a tool that must be called", {"tools": [TOOL], "tool_choice": "required"},
                 {"chat": chat(TURNS, tools=[json.dumps(TOOL, separators=(",", ":"))], tool_choice=pb.TOOL_CHOICE_REQUIRED)})]:
            with self.subTest(name):
                http = self.ok("/v1/chat/completions",
                               **{"model": "big", "messages": TURNS, "max_tokens": 40, "temperature": 0, **body})
                answers, usage = self.generate(**{"chat": chat(TURNS), "max_tokens": 40, **fields})
                self.check_answers(http, answers, usage, lambda c: c["message"]["content"] or "")

    def test_embeddings(self):
        for name, body, fields in [("plain", {}, {}), ("short", {"dimensions": 8}, {"dimensions": 8}),
                                   ("raw", {"normalize": False}, {"no_normalization": True})]:
            with self.subTest(name):
                texts = ["In the beginning", "x"]
                http = self.ok("/v1/embeddings", model="big", input=texts, **body)
                reply = self.rpc.Embed(pb.EmbedRequest(model="big", inputs=[pb.EmbedInput(text=t) for t in texts], **fields))
                self.assertEqual(http["usage"]["prompt_tokens"], reply.usage.prompt_tokens)
                self.assertEqual(len(http["data"]), 2)
                for ours, theirs in zip(http["data"], reply.embeddings, strict=True):
                    for a, b in zip(ours["embedding"], theirs.values, strict=True):
                        self.assertAlmostEqual(a, b, places=5)

    def test_tokenize(self):
        cases = [({"prompt": text, "add_special_tokens": special}, dict(text=text, no_special_tokens=not special))
                 for text in ("And God said", "", "h\u00e9 \U0001F600") for special in (True, False)]
        cases.append(({"messages": TURNS}, dict(chat=chat(TURNS))))
        for body, fields in cases:
            for model in ("big", ""):  # the only one
                for strings in (False, True):
                    with self.subTest(body=body, model=model, strings=strings):
                        http = self.ok("/tokenize", model=model, return_token_strs=strings, **body)
                        reply = self.rpc.Tokenize(pb.TokenizeRequest(model=model, return_token_strings=strings, **fields))
                        self.assertEqual(http["tokens"], list(reply.tokens))
                        self.assertEqual((http["count"], http["max_model_len"]), (reply.count, reply.max_model_len))
                        self.assertEqual(reply.count, len(reply.tokens))
                        self.assertEqual("token_strs" in http, strings)
                        self.assertEqual(http.get("token_strs", []),
                                         [t.decode(errors="replace") for t in reply.token_strings])
        self.assertEqual(list(self.rpc.Tokenize(pb.TokenizeRequest(text="h\u00e9")).tokens), [104, 195, 169])
        # A chat's tokens are those that its answer counts.
        counted = self.rpc.Tokenize(pb.TokenizeRequest(chat=chat(TURNS))).count
        self.assertEqual(self.generate(chat=chat(TURNS), max_tokens=1)[1].prompt_tokens, counted)

    def test_detokenize(self):
        for tokens in ([104, 195, 169], [], [195], [0, 255, 65]):
            http = self.ok("/detokenize", model="big", tokens=tokens)
            self.assertEqual(http["prompt"], self.rpc.Detokenize(pb.DetokenizeRequest(model="big", tokens=tokens)).text)

    def test_errors(self):
        many = "x" * 2000
        for path, body, method, request, code in [
                ("/v1/completions", dict(prompt="x", model="nobody"), "Generate",
                 pb.GenerateRequest(model="nobody", text="x"), Code.NOT_FOUND),
                ("/v1/completions", dict(prompt=""), "Generate", pb.GenerateRequest(text=""), Code.INVALID_ARGUMENT),
                ("/v1/completions", dict(prompt=many), "Generate", pb.GenerateRequest(text=many), Code.INVALID_ARGUMENT),
                ("/v1/completions", dict(prompt=[1, 30000]), "Generate",
                 pb.GenerateRequest(tokens=pb.TokenList(ids=[1, 30000])), Code.INVALID_ARGUMENT),
                ("/v1/completions", dict(prompt="x", guided_regex="("), "Generate",
                 pb.GenerateRequest(text="x", structured_output=dict(regex="(")), Code.INVALID_ARGUMENT),
                ("/v1/completions", dict(prompt="x", stop=[""]), "Generate",
                 pb.GenerateRequest(text="x", stop=[""]), Code.INVALID_ARGUMENT),
                ("/v1/completions", dict(prompt="x", allowed_token_ids=[30000]), "Generate",
                 pb.GenerateRequest(text="x", sampling=dict(allowed_token_ids=[30000])), Code.INVALID_ARGUMENT),
                ("/v1/chat/completions", dict(messages=TURNS, continue_final_message=True, add_generation_prompt=False),
                 "Generate", pb.GenerateRequest(chat=chat(TURNS, continue_final_message=True)), Code.INVALID_ARGUMENT),
                ("/v1/chat/completions", dict(messages=TURNS, chat_template_kwargs={"a": 1}), "Generate",
                 pb.GenerateRequest(chat=chat(TURNS, template_arguments='{"a": 1}')), Code.INVALID_ARGUMENT),
                ("/v1/embeddings", dict(input="x", model="nobody"), "Embed",
                 pb.EmbedRequest(model="nobody", inputs=[pb.EmbedInput(text="x")]), Code.NOT_FOUND),
                ("/v1/embeddings", dict(input="x", dimensions=1000), "Embed",
                 pb.EmbedRequest(inputs=[pb.EmbedInput(text="x")], dimensions=1000), Code.INVALID_ARGUMENT),
                ("/v1/embeddings", dict(input=["x", many]), "Embed",
                 pb.EmbedRequest(inputs=[pb.EmbedInput(text="x"), pb.EmbedInput(text=many)]), Code.INVALID_ARGUMENT),
                ("/tokenize", dict(prompt="x", model="nobody"), "Tokenize",
                 pb.TokenizeRequest(model="nobody", text="x"), Code.NOT_FOUND),
                ("/tokenize", dict(messages=[{"role": "user", "content": "x"}], model="nobody"), "Tokenize",
                 pb.TokenizeRequest(model="nobody", chat=chat(TURNS)), Code.NOT_FOUND),
                ("/detokenize", dict(tokens=[1 << 20]), "Detokenize",
                 pb.DetokenizeRequest(tokens=[1 << 20]), Code.INVALID_ARGUMENT)]:
            with self.subTest(path=path, body=str(body)[:80]):
                if not request.model:
                    request.model = "big"
                status, answer = self.post(path, **{"model": "big", **body})
                got, message = error_of(lambda: getattr(self.rpc, method)(request))
                self.assertEqual(got, code, message)
                self.assertEqual(status, HTTP_STATUS[code], answer)
                self.assertEqual(answer["error"]["message"], message)

    def test_unknown_enum_values(self):
        for field, request in [("speculation", pb.GenerateRequest(model="big", text="x", speculation=77)),
                               ("tool_choice", pb.GenerateRequest(model="big", chat=chat(TURNS, tool_choice=77)))]:
            code, message = error_of(lambda: self.rpc.Generate(request))
            self.assertEqual(code, Code.INVALID_ARGUMENT, message)
            self.assertIn(field, message)

    def test_fields_of_one_protocol_only(self):
        """Codes are equal; messages use the field names of each protocol."""
        for path, body, method, request in [
                ("/v1/completions", dict(prompt="x", top_p=2), "Generate", pb.GenerateRequest(text="x", sampling=dict(top_p=2))),
                ("/v1/completions", dict(prompt="x", max_tokens=-1), "Generate", pb.GenerateRequest(text="x", max_tokens=-1)),
                ("/v1/completions", dict(prompt="x", n=1000), "Generate", pb.GenerateRequest(text="x", n=1000)),
                ("/v1/completions", dict(prompt="x", temperature=-1), "Generate",
                 pb.GenerateRequest(text="x", sampling=dict(temperature=-1))),
                ("/v1/chat/completions", dict(messages=[]), "Generate", pb.GenerateRequest(chat=chat([]))),
                ("/v1/chat/completions", dict(messages=[{"role": "nobody", "content": "x"}]), "Generate",
                 pb.GenerateRequest(chat=chat([{"role": "nobody", "content": "x"}]))),
                ("/v1/embeddings", dict(input=[]), "Embed", pb.EmbedRequest()),
                ("/detokenize", dict(tokens=[-1]), "Detokenize", pb.DetokenizeRequest(tokens=[-1]))]:
            with self.subTest(path=path, body=body):
                request.model = "big"
                status, answer = self.post(path, **{"model": "big", **body})
                got, message = error_of(lambda: getattr(self.rpc, method)(request))
                self.assertEqual((status, got), (400, Code.INVALID_ARGUMENT), (answer, message))

    def test_a_text_too_long_to_tokenize_is_refused(self):
        code, message = error_of(lambda: self.rpc.Tokenize(pb.TokenizeRequest(text="x" * ((8 << 20) + 1))))
        self.assertEqual(code, Code.INVALID_ARGUMENT)
        self.assertIn("8388608", message)

    def test_api_keys(self):
        with Calls(self.cluster.grpc, "Inference", "the-key-of-a-stranger") as stranger:
            for call in (lambda: stranger.Tokenize(pb.TokenizeRequest(text="x")),
                         lambda: stranger.Detokenize(pb.DetokenizeRequest(tokens=[1]))):
                self.assertEqual(error_of(call)[0], Code.UNAUTHENTICATED)
        for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            self.assertEqual(self.cluster.request("POST", path, json.dumps(body), token="the-key-of-a-stranger")[0], 401)

    def long(self, rpc=None, **fields):
        return (rpc or self.rpc).Generate(pb.GenerateRequest(model="big", text="And", max_tokens=1000, ignore_eos=True, n=8, **fields))

    def test_cancel_requires_request_id_and_same_owner_or_an_admin(self):
        ids = []
        calls = [Calls(self.cluster.grpc, "Inference", key) for key in (OTHER_KEY, SAME_OWNERS_KEY, THIRD_KEY)]
        with calls[0] as owner, calls[1] as same, calls[2] as third:
            for allowed in (owner, same, self.rpc):
                replies = self.long(owner)
                ids.append(next(replies).request_id)
                self.assertRegex(ids[-1], "^gen-[0-9a-f]{32}$")
                self.assertFalse(third.Cancel(pb.CancelGenerateRequest(request_id=ids[-1])).found)
                self.assertFalse(allowed.Cancel(pb.CancelGenerateRequest(request_id="gen-1")).found)
                self.assertTrue(allowed.Cancel(pb.CancelGenerateRequest(request_id=ids[-1])).found)
                self.assertIn("cancelled", {reply.finish_reason for reply in replies})
            self.assertEqual(len({id[:16] for id in ids}), 3)
            # What an admin without an owner generates is not everyone's to cancel.
            replies = self.long()
            admins = pb.CancelGenerateRequest(request_id=next(replies).request_id)
            self.assertFalse(owner.Cancel(admins).found)
            self.assertTrue(self.rpc.Cancel(admins).found)
            list(replies)

    def test_client_chosen_request_ids(self):
        replies = self.long(request_id="mine")
        self.assertEqual(next(replies).request_id, "mine")
        code, message = error_of(lambda: self.long(request_id="mine"))
        self.assertEqual(code, Code.ALREADY_EXISTS)
        self.assertIn("'mine' is running", message)
        # Another caller's of that name is another one.
        with Calls(self.cluster.grpc, "Inference", OTHER_KEY) as other:
            same = other.Generate(pb.GenerateRequest(model="big", text="And", max_tokens=2, request_id="mine"))
            self.assertEqual([r.finish_reason for r in same][-1], "length")
            # Of two owners' an admin cancels its own.
            others = self.long(other, request_id="mine")
            next(others)
            self.assertTrue(self.rpc.Cancel(pb.CancelGenerateRequest(request_id="mine")).found)
            list(replies)
            self.assertTrue(other.Cancel(pb.CancelGenerateRequest(request_id="mine")).found)
            list(others)
        for call in (lambda: self.long(request_id="x" * 257),
                     lambda: self.rpc.Embed(pb.EmbedRequest(model="big", inputs=[pb.EmbedInput(text="x")],
                                                            request_id="x" * 257))):
            code, message = error_of(call)
            self.assertEqual(code, Code.INVALID_ARGUMENT)
            self.assertIn("request_id", message)


if __name__ == "__main__":
    unittest.main()
