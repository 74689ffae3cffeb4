"""Completions by OpenAI's Python client, as cases of openai_client_test."""
import json
import re

import openai
from openai_case import OpenAiCase


class CompletionCases(OpenAiCase):
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
