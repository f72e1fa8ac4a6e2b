"""LiteLLM, unchanged, through Maitre: as an OpenAI endpoint and as an Anthropic one.

Run by scripts/clients, which installs it and names the binary in MAITRE.
"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
# Not over the network for a list of prices.
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

from processes import MODEL, Setup, main

QUESTION = [{"role": "user", "content": "Is there a table for two?"}]
KEY = "none"


def setUpModule():
    global setup, openai, anthropic
    setup = Setup()
    openai = {"model": f"openai/{MODEL}", "api_base": setup.url + "/v1", "api_key": KEY, "num_retries": 0}
    anthropic = {"model": f"anthropic/{MODEL}", "api_base": setup.url, "api_key": KEY, "num_retries": 0}


class LiteLlm(unittest.TestCase):
    def tearDown(self):
        setup.until_nothing_is_open()

    def test_both_shapes_whole(self):
        for target in (openai, anthropic):
            with self.subTest(target["model"]):
                answer = litellm.completion(messages=QUESTION, max_tokens=9, **target)
                self.assertTrue(answer.choices[0].message.content)
                self.assertEqual(answer.usage.completion_tokens, 9)

    def test_both_shapes_streamed(self):
        for target in (openai, anthropic):
            with self.subTest(target["model"]):
                whole = litellm.completion(messages=QUESTION, max_tokens=9, **target)
                chunks = litellm.completion(messages=QUESTION, max_tokens=9, stream=True, **target)
                text = "".join(it.choices[0].delta.content or "" for it in chunks)
                self.assertEqual(text, whole.choices[0].message.content)

    def test_other_routes(self):
        embedded = litellm.embedding(input=["soup", "fish"], **openai)
        self.assertEqual(len(embedded.data), 2)
        text = litellm.text_completion(prompt="Once", max_tokens=4, **openai | {"model": f"text-completion-openai/{MODEL}"})
        self.assertTrue(text.choices[0].text)

    def test_errors_have_their_classes(self):
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(messages=QUESTION, **openai | {"model": "openai/gpt-nope"})
        with self.assertRaises(litellm.BadRequestError):
            litellm.completion(messages=QUESTION, max_tokens=10_000_000, **openai)

    def test_a_limit_is_a_rate_limit_error(self):
        limited = Setup("--tenants", "*?rpm=1", engines=1)
        target = openai | {"api_base": limited.url + "/v1"}
        answer = litellm.completion(messages=QUESTION, max_tokens=2, **target)
        left = answer._hidden_params["additional_headers"]["x-ratelimit-remaining-requests"]
        self.assertEqual(int(left), 0)
        with self.assertRaises(litellm.RateLimitError):
            litellm.completion(messages=QUESTION, **target)


if __name__ == "__main__":
    main()
