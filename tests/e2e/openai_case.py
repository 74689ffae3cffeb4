"""What the tests of OpenAI's Python client share: a served LLM and SSM with API keys, and requests."""
import os
import typing
import unittest

import openai
import pydantic
from cluster import Cluster, write_private
from language_models import train

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


class OpenAiCase(unittest.TestCase):
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

    def embed(self, text, **fields):
        return self.client.embeddings.create(model="big", input=text, **fields)
