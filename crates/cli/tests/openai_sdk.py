"""The official `openai` client, unchanged, through Maitre: what it sends is understood, what it gets it can read.

Run by scripts/test, which installs the client and names the binary in MAITRE.
"""

import asyncio
import json
import unittest

import openai

from processes import MODEL, PATIENCE_S, Setup, ask, main

QUESTION = [{"role": "user", "content": "Is there a table for two?"}]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }
    for name, properties in [
        ("seat", {"guests": {"type": "integer"}, "where": {"enum": ["inside", "outside"]}}),
        ("bill", {"split": {"type": "boolean"}}),
    ]
]


def setUpModule():
    global setup, client
    setup = Setup()
    client = openai.OpenAI(base_url=setup.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    unittest.addModuleCleanup(client.close)


def chat(**options):
    return client.chat.completions.create(model=MODEL, messages=QUESTION, **options)


class Case(unittest.TestCase):
    def tearDown(self):
        setup.until_nothing_is_open()


class Continued(unittest.TestCase):
    """A stream whose engine breaks in the middle: the client notices nothing."""

    @classmethod
    def setUpClass(cls):
        cls.setup = Setup("--continue", "on", engines=3)
        cls.client = openai.OpenAI(base_url=cls.setup.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
        cls.addClassCleanup(cls.client.close)

    def answer(self, **options):
        stream = self.client.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, max_tokens=40, stream_options={"include_usage": True},
            extra_body={"ignore_eos": True}, **options)
        chunks = list(stream)
        self.assertEqual(len({(it.id, it.created, it.model) for it in chunks}), 1)
        roles = [it.choices[0].delta.role for it in chunks if it.choices and it.choices[0].delta.role]
        finishes = [it.choices[0].finish_reason for it in chunks if it.choices and it.choices[0].finish_reason]
        text = "".join(it.choices[0].delta.content or "" for it in chunks if it.choices)
        return text, roles, finishes, chunks[-1].usage.completion_tokens, chunks[-1].usage.prompt_tokens

    def test_a_broken_stream_is_the_unbroken_one(self):
        whole = self.answer()
        self.assertEqual((whole[1], whole[2], whole[3]), (["assistant"], ["length"], 40))
        for bytes in (900, 2500, 5000, 7777):
            for url in self.setup.engines:
                ask("POST", url + "/sim/fault", {"kind": "close_after_bytes", "bytes": bytes, "times": 1})
            for _ in self.setup.engines:
                self.assertEqual(self.answer(), whole)
        self.setup.until_metric('maitre_continuations_total', lambda values: sum(values) >= 8)
        self.setup.until_nothing_is_open()

    def test_a_stop_string_across_a_break_ends_it(self):
        text = self.answer()[0]
        stop = text[61:66]
        whole = self.answer(stop=[stop])
        self.assertEqual((whole[0], whole[2]), (text[:61], ["stop"]))
        for url in self.setup.engines:
            ask("POST", url + "/sim/fault", {"kind": "close_after_bytes", "bytes": 4000, "times": 1})
        for _ in self.setup.engines:
            self.assertEqual(self.answer(stop=[stop]), whole)
        self.setup.until_nothing_is_open()


class Chat(Case):
    def test_whole(self):
        answer = chat(max_tokens=8, extra_body={"ignore_eos": True})
        self.assertEqual((answer.object, answer.model), ("chat.completion", MODEL))
        [choice] = answer.choices
        self.assertEqual((choice.message.role, choice.finish_reason), ("assistant", "length"))
        self.assertTrue(choice.message.content)
        usage = answer.usage
        self.assertEqual(usage.completion_tokens, 8)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + 8)

    def test_the_head_says_who_answered(self):
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=1)
        self.assertIn(raw.headers["x-maitre-worker"], setup.engines)
        self.assertEqual(raw.headers["x-maitre-why"], "turn")
        self.assertTrue(raw.headers["x-request-id"])

    def test_stream_with_usage_says_the_same_as_the_whole(self):
        options = {"max_tokens": 20, "extra_body": {"ignore_eos": True}}
        chunks = list(chat(stream=True, stream_options={"include_usage": True}, **options))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 20)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
        self.assertEqual({it.id for it in chunks}, {chunks[0].id})
        text = "".join(it.choices[0].delta.content or "" for it in chunks if it.choices)
        self.assertEqual(text, chat(**options).choices[0].message.content)

    def test_stream_without_usage_has_none(self):
        chunks = list(chat(stream=True, max_tokens=3))
        self.assertTrue(all(it.usage is None and it.choices for it in chunks))

    def test_a_stream_left_early_is_left_behind_too(self):
        with chat(stream=True, max_tokens=20_000, extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
        setup.until_nothing_is_open()
        setup.until_metric("maitre_worker_engine_running", lambda values: set(values) == {0})

    def test_the_stream_helper_puts_the_answer_together(self):
        with client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream:
            deltas = [it.delta for it in stream if it.type == "content.delta"]
            answer = stream.get_final_completion()
        self.assertEqual("".join(deltas), answer.choices[0].message.content)

    def test_a_conversation_goes_on(self):
        first = chat(max_tokens=5).choices[0].message
        messages = [*QUESTION, first, {"role": "user", "content": [{"type": "text", "text": "Tonight?"}]}]
        second = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
        self.assertTrue(second.choices[0].message.content)


class Tools(Case):
    def check(self, calls, name, arguments):
        [call] = calls
        self.assertEqual((call.type, call.function.name), ("function", name))
        self.assertTrue(call.id)
        self.assertEqual(json.loads(call.function.arguments), arguments)

    def test_required(self):
        choice = chat(tools=TOOLS, tool_choice="required").choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
        self.check(choice.message.tool_calls, "seat", {"guests": 7, "where": "inside"})

    def test_named_and_its_result(self):
        named = {"type": "function", "function": {"name": "bill"}}
        message = chat(tools=TOOLS, tool_choice=named).choices[0].message
        self.check(message.tool_calls, "bill", {"split": True})
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "42.00"}
        messages = [*QUESTION, message, result]
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=4)
        self.assertTrue(answer.choices[0].message.content)

    def test_offered_only(self):
        choice = chat(tools=TOOLS, tool_choice="auto", max_tokens=4).choices[0]
        self.assertTrue(choice.message.content)
        self.assertFalse(choice.message.tool_calls)

    def test_stream(self):
        name, call_id, arguments, finish = None, None, "", None
        for chunk in chat(tools=TOOLS, tool_choice="required", stream=True):
            finish = chunk.choices[0].finish_reason or finish
            for delta in chunk.choices[0].delta.tool_calls or []:
                self.assertEqual(delta.index, 0)
                call_id = delta.id or call_id
                name = delta.function.name or name
                arguments += delta.function.arguments or ""
        self.assertTrue(call_id)
        self.assertEqual((name, finish), ("seat", "tool_calls"))
        self.assertEqual(json.loads(arguments), {"guests": 7, "where": "inside"})

    def test_the_stream_helper_puts_the_call_together(self):
        options = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "tool_choice": "required"}
        with client.chat.completions.stream(**options) as stream:
            message = stream.get_final_completion().choices[0].message
        self.check(message.tool_calls, "seat", {"guests": 7, "where": "inside"})


class OtherRoutes(Case):
    def test_completion(self):
        answer = client.completions.create(model=MODEL, prompt="Once", max_tokens=6)
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 6)

    def test_completion_stream(self):
        options = {"model": MODEL, "prompt": "Once", "max_tokens": 6}
        whole = client.completions.create(**options)
        usage = {"include_usage": True}
        chunks = list(client.completions.create(**options, stream=True, stream_options=usage))
        self.assertEqual("".join(it.choices[0].text for it in chunks[:-1]), whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, 6)

    def test_embeddings_in_both_encodings(self):
        options = {"model": MODEL, "input": ["soup", "fish"]}
        # Unasked, the client takes base64 and decodes it.
        packed = client.embeddings.create(**options)
        plain = client.embeddings.create(**options, encoding_format="float")
        self.assertEqual([it.index for it in packed.data], [0, 1])
        for one, other in zip(packed.data, plain.data, strict=True):
            self.assertEqual(len(one.embedding), 16)
            for a, b in zip(one.embedding, other.embedding, strict=True):
                self.assertAlmostEqual(a, b, places=6)
        self.assertGreater(packed.usage.prompt_tokens, 0)

    def test_models(self):
        models = client.models.list()
        self.assertEqual([(it.id, it.object) for it in models], [(MODEL, "model")])
        self.assertEqual(client.models.retrieve(MODEL).id, MODEL)
        with self.assertRaises(openai.NotFoundError) as caught:
            client.models.retrieve("org/unknown")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_response(self):
        answer = client.responses.create(model=MODEL, input="Hello", instructions="Be brief.")
        self.assertEqual((answer.object, answer.status), ("response", "completed"))
        self.assertTrue(answer.output_text)
        self.assertGreater(answer.usage.output_tokens, 0)
        cut = client.responses.create(model=MODEL, input="Hello", max_output_tokens=2)
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_response_stream(self):
        options = {"model": MODEL, "input": QUESTION, "instructions": "Be brief."}
        whole = client.responses.create(**options)
        events = list(client.responses.create(**options, stream=True))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].type, "response.completed")
        self.assertEqual([it.sequence_number for it in events], list(range(len(events))))
        text = "".join(it.delta for it in events if it.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        self.assertEqual(events[-1].response.output_text, text)

    def test_the_response_stream_helper_puts_the_answer_together(self):
        with client.responses.stream(model=MODEL, input=QUESTION) as stream:
            text = "".join(it.delta for it in stream if it.type == "response.output_text.delta")
            self.assertEqual(stream.get_final_response().output_text, text)


class Errors(Case):
    def test_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-nope", messages=QUESTION)
        error = caught.exception
        self.assertEqual((error.code, error.param, error.status_code), ("model_not_found", "model", 404))
        self.assertIn(MODEL, error.message)

    def test_bad_input_is_refused_by_us(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages="Hello")
        error = caught.exception
        self.assertEqual((error.code, error.param), ("wrong_type", "messages"))
        self.assertEqual(error.type, "invalid_request_error")

    def test_bad_input_is_refused_by_the_engine_in_its_own_words(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(max_tokens=10_000_000)
        self.assertEqual(caught.exception.type, "BadRequestError")

    def test_a_path_of_nobody(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            client.files.list()
        self.assertEqual(caught.exception.code, "unknown_path")

    def test_a_stream_that_breaks_is_an_error_and_not_an_end(self):
        setup.fault(self, kind="close_after_chunks", chunks=3)
        routes = {
            "chat": lambda: chat(stream=True, max_tokens=20),
            "completions": lambda: client.completions.create(model=MODEL, prompt="x", max_tokens=20, stream=True),
        }
        for route, begin in routes.items():
            with self.subTest(route):
                seen = 0
                with self.assertRaises(openai.APIError) as caught:
                    for _ in begin():
                        seen += 1
                self.assertEqual((seen, caught.exception.code), (3, "worker_failed"))

    def test_a_response_that_breaks_ends_with_an_error_event(self):
        setup.fault(self, kind="close_after_chunks", chunks=6)
        seen = []
        # The client hands this event over as it would OpenAI's own; newer ones may raise it.
        try:
            seen.extend(it.type for it in client.responses.create(model=MODEL, input="x", stream=True))
        except openai.APIError as error:
            self.assertEqual(error.code, "worker_failed")
        else:
            self.assertEqual(seen[-1], "error")
        self.assertNotIn("response.completed", seen)

    def test_an_impatient_client_leaves_nothing_behind(self):
        setup.fault(self, kind="stall")
        with self.assertRaises(openai.APITimeoutError):
            chat(timeout=0.3)
        setup.until_nothing_is_open()


class Retries(Case):
    def test_a_fault_of_one_worker_is_not_seen(self):
        setup.fault(self, kind="close_before_headers", times=1)
        for _ in range(3):
            self.assertTrue(chat(max_tokens=2).choices)

    def test_the_client_comes_again_when_the_whole_fleet_is_full(self):
        setup.fault(self, kind="status", status=503, times=1)
        raw = client.with_options(max_retries=3).chat.completions.with_raw_response
        answer = raw.create(model=MODEL, messages=QUESTION, max_tokens=2)
        self.assertEqual(answer.retries_taken, 1)
        self.assertTrue(answer.parse().choices)

    def test_a_client_that_does_not_is_told(self):
        setup.fault(self, kind="status", status=503)
        with self.assertRaises(openai.InternalServerError) as caught:
            chat()
        self.assertEqual(caught.exception.status_code, 503)


class Limits(Case):
    def test_a_limit_is_a_rate_limit_error_that_says_what_is_left(self):
        limited = Setup("--tenants", "*?rpm=1&tpm=100000", engines=1)
        with openai.OpenAI(base_url=limited.url + "/v1", api_key="none", max_retries=0) as client:
            raw = client.chat.completions.with_raw_response
            answer = raw.create(model=MODEL, messages=QUESTION, max_tokens=2)
            self.assertEqual(answer.headers["x-ratelimit-remaining-requests"], "0")
            with self.assertRaises(openai.RateLimitError) as caught:
                client.chat.completions.create(model=MODEL, messages=QUESTION)
        error, headers = caught.exception, caught.exception.response.headers
        self.assertEqual((error.type, error.code), ("rate_limit_error", "rate_limit_exceeded"))
        self.assertIn("1 request per minute", error.message)
        self.assertEqual(headers["x-ratelimit-limit-requests"], "1")
        self.assertEqual(headers["x-ratelimit-limit-tokens"], "100000")
        self.assertLessEqual(int(headers["retry-after"]), 60)


class Async(Case):
    def test_twenty_streams_at_once(self):
        async def one(client, number):
            messages = [{"role": "user", "content": f"Client number {number}"}]
            options = {"stream": True, "stream_options": {"include_usage": True}}
            body = {"ignore_eos": True}
            stream = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=100 + number, extra_body=body, **options
            )
            text, usage = "", None
            async for chunk in stream:
                text += "".join(it.delta.content or "" for it in chunk.choices)
                usage = chunk.usage or usage
            return text, usage.completion_tokens

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=setup.url + "/v1", api_key="none", max_retries=0) as client:
                return await asyncio.gather(*(one(client, number) for number in range(20)))

        answers = asyncio.run(asyncio.wait_for(all_of_them(), PATIENCE_S))
        self.assertEqual([tokens for _, tokens in answers], [100 + number for number in range(20)])
        self.assertEqual(len({text for text, _ in answers}), 20, "each got its own answer")


if __name__ == "__main__":
    main()
