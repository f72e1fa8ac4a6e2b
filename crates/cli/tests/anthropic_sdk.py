"""The official `anthropic` client, unchanged, through Maitre to the engines' `/v1/messages`.

Run by scripts/test, which installs the client and names the binary in MAITRE.
"""

import unittest

import anthropic

from processes import MODEL, PATIENCE_S, Setup, ask, main

QUESTION = [{"role": "user", "content": "Is there a table for two?"}]
TOOL = {"name": "seat", "input_schema": {"type": "object", "properties": {"guests": {"type": "integer"}}}}


def setUpModule():
    global setup, client
    setup = Setup()
    client = anthropic.Anthropic(base_url=setup.url, api_key="none", max_retries=0, timeout=PATIENCE_S)
    unittest.addModuleCleanup(client.close)


def message(**options):
    return client.messages.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": 9, **options})


class Messages(unittest.TestCase):
    def tearDown(self):
        setup.until_nothing_is_open()

    def test_whole(self):
        answer = message(system="Be brief.")
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", MODEL))
        self.assertEqual((answer.stop_reason, answer.usage.output_tokens), ("max_tokens", 9))
        self.assertTrue(answer.content[0].text)

    def test_stream_says_the_same_as_the_whole(self):
        with client.messages.stream(model=MODEL, messages=QUESTION, max_tokens=9) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 9))
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(text, message().content[0].text)

    def test_raw_events_come_in_order(self):
        kinds = [it.type for it in message(stream=True, max_tokens=2)]
        deltas = ["content_block_delta"] * 2
        opening = ["message_start", "content_block_start"]
        self.assertEqual(kinds, [*opening, *deltas, "content_block_stop", "message_delta", "message_stop"])

    def test_tools(self):
        options = {"tools": [TOOL], "max_tokens": 200}
        for choice in [{"type": "any"}, {"type": "tool", "name": "seat"}]:
            answer = message(tool_choice=choice, **options)
            self.assertEqual(answer.stop_reason, "tool_use")
            [block] = answer.content
            self.assertEqual((block.type, block.name, block.input), ("tool_use", "seat", {"guests": 7}))
        with client.messages.stream(model=MODEL, messages=QUESTION, tool_choice=choice, **options) as stream:
            [block] = stream.get_final_message().content
        self.assertEqual((block.name, block.input), ("seat", {"guests": 7}))

    def test_tokens_are_counted(self):
        counted = client.messages.count_tokens(model=MODEL, messages=QUESTION)
        usage = message().usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_errors_have_the_clients_own_classes(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            message(model="claude-nope")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            message(messages="Hello")
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")

    def test_a_stream_that_breaks_is_an_error_and_not_an_end(self):
        setup.fault(self, kind="close_after_chunks", chunks=4)
        with self.assertRaises(anthropic.APIStatusError) as caught:
            list(message(stream=True, max_tokens=50))
        self.assertEqual(caught.exception.body["error"]["type"], "api_error")

    def test_the_client_comes_again_when_the_whole_fleet_is_full(self):
        setup.fault(self, kind="status", status=503, times=1)
        raw = client.with_options(max_retries=3).messages.with_raw_response
        answer = raw.create(model=MODEL, messages=QUESTION, max_tokens=2)
        self.assertEqual(answer.retries_taken, 1)


class Continued(unittest.TestCase):
    """Streams whose worker fails go on at another one, and the client does not notice."""

    @classmethod
    def setUpClass(cls):
        cls.setup = Setup("--continue", "on", engines=3)
        cls.client = anthropic.Anthropic(base_url=cls.setup.url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        cls.addClassCleanup(cls.client.close)

    def answer(self, **options):
        with self.client.messages.stream(model=MODEL, messages=QUESTION, max_tokens=40, **options) as stream:
            kinds = [it.type for it in stream]
            final = stream.get_final_message()
        usage = final.usage
        prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        ends = [kinds.count(it) for it in ("message_start", "content_block_start", "content_block_stop", "message_stop")]
        return final.content[0].text, final.stop_reason, final.stop_sequence, usage.output_tokens, prompt, ends

    def test_a_broken_stream_is_the_unbroken_one(self):
        whole = self.answer(system="Be brief.")
        self.assertEqual((whole[1], whole[3], whole[5]), ("max_tokens", 40, [1, 1, 1, 1]))
        self.breaks(whole, system="Be brief.")

    def test_a_stop_sequence_across_a_break_ends_it(self):
        text = self.answer()[0]
        stop = text[61:66]
        whole = self.answer(stop_sequences=[stop])
        self.assertEqual(whole[:3], (text[:61], "stop_sequence", stop))
        self.breaks(whole, stop_sequences=[stop])

    def breaks(self, whole, **options):
        for bytes in (900, 2500, 5000):
            for url in self.setup.engines:
                ask("POST", url + "/sim/fault", {"kind": "close_after_bytes", "bytes": bytes, "times": 1})
            for _ in self.setup.engines:
                self.assertEqual(self.answer(**options), whole)
        self.setup.until_metric("maitre_continuations_total", lambda values: sum(values) >= 4)
        self.setup.until_nothing_is_open()


if __name__ == "__main__":
    main()
