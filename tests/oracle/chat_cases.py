"""Conversations that chat templates must render: what clients really send, and what they should not."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": 'City, or "lat,lon" — UTF‑8 é'},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14, "nullable": True},
            },
            "required": ["place"],
        },
    },
}
NESTED = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books a trip.\nTwo lines.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "legs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "from": {"type": "string"},
                            "to": {"type": ["string", "null"]},
                            "price": {"type": "number", "default": 1e-07},
                        },
                        "required": ["from", "to"],
                    },
                },
                "tags": {"type": "array", "items": {"type": "string"}, "description": "labels"},
                "who": {"oneOf": [{"type": "object", "properties": {}}, {"type": "string", "description": "a name"}]},
                "extra": {"type": "object", "additionalProperties": {"type": "boolean"}},
                "flag": {"type": "boolean", "default": False},
                "any": {},
            },
            "required": ["legs"],
            "additionalProperties": False,
        },
        "return": {"type": "string"},
    },
}
PLAIN = {
    "type": "function",
    "function": {"name": "now", "description": "Time.", "parameters": {"type": "object", "properties": {}}},
}
BARE = {
    "name": "bare",
    "description": "not wrapped",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}

SYSTEM = {"role": "system", "content": "You are terse."}
HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi!"}


def call(arguments, call_id="abc123XYZ", name="get_weather", content="", **more):
    return {
        "role": "assistant",
        "content": content,
        **more,
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def result(content, call_id="abc123XYZ", **more):
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def conversations():
    args = {"place": "Paris", "days": 3, "nested": {"a": [1, 2.5, None, True], "é": 'ü"\n'}}
    yield "hello", [HELLO]
    yield "empty", []
    yield "system", [SYSTEM, HELLO]
    yield "system only", [SYSTEM]
    yield "turns", [SYSTEM, HELLO, HI, {"role": "user", "content": "And now?"}]
    yield "turns without system", [HELLO, HI, {"role": "user", "content": "x"}, HI, {"role": "user", "content": "y"}]
    yield "ends with assistant", [HELLO, HI]
    yield "two users", [HELLO, {"role": "user", "content": "again"}]
    yield "two systems", [SYSTEM, SYSTEM, HELLO]
    yield "late system", [HELLO, SYSTEM, HI]
    yield "developer", [{"role": "developer", "content": "Be kind."}, HELLO]
    yield "odd role", [{"role": "critic", "content": "Bah"}, HELLO]
    yield (
        "space",
        [
            {"role": "user", "content": "  \n padded\t\u00a0\u3000 \n"},
            {"role": "assistant", "content": "\n\nanswer  \n"},
            HELLO,
        ],
    )
    yield (
        "unicode",
        [
            {"role": "system", "content": "Réponds 日本語 🙂\u200d"},
            {"role": "user", "content": "naïve ß İ ǅ \u2028 \x85 “quotes”"},
        ],
    )
    yield "template text", [{"role": "user", "content": "{{ 1 }} {% if %} {# #} <|im_end|> </think>"}]
    yield "empty content", [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, HELLO]
    yield "null content", [{"role": "user", "content": None}, {"role": "assistant", "content": None}, HELLO]
    yield "no content", [{"role": "user"}, {"role": "assistant"}, HELLO]
    yield (
        "parts",
        [
            {"role": "system", "content": [{"type": "text", "text": "sys"}]},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]},
        ],
    )
    yield (
        "image part",
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                    {"type": "text", "text": "what?"},
                ],
            }
        ],
    )
    yield "bad part", [{"role": "user", "content": [{"type": "odd"}, "plain", 7]}]
    yield "number content", [{"role": "user", "content": 12}, {"role": "assistant", "content": 1.5}]
    yield "dict content", [{"role": "user", "content": {"a": [1, {"b": "c"}]}}]
    for name, value in (
        ("object", args),
        ("string", '{"place": "Paris"}'),
        ("empty object", {}),
        ("empty string", ""),
        ("none", None),
    ):
        yield f"call with {name}", [SYSTEM, HELLO, call(value), result("18 °C"), {"role": "user", "content": "Thanks"}]
    yield "call pending", [HELLO, call(args)]
    yield "call without content", [HELLO, {k: v for k, v in call(args).items() if k != "content"}, result("ok")]
    yield "call null content", [HELLO, call(args, content=None), result({"temp": 18, "list": [1, "é"]})]
    yield "call with content", [HELLO, call(args, content="Let me look."), result("ok", name="get_weather"), HI]
    yield (
        "call with final",
        [
            HELLO,
            call(args),
            result("a"),
            {"role": "assistant", "content": "It is 18."},
            HELLO,
            call(args, "id2222222"),
            result("b", "id2222222"),
        ],
    )
    both = call(args)
    both["tool_calls"] = both["tool_calls"] + call({"x": 1}, "ZZZ456abc", "now")["tool_calls"]
    yield (
        "two calls",
        [HELLO, both, result("one"), result("two", "ZZZ456abc"), {"role": "assistant", "content": "done"}, HELLO],
    )
    yield (
        "unwrapped call",
        [
            HELLO,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "123456789", "name": "now", "arguments": {"a": 1}}],
            },
            result("x", "123456789"),
        ],
    )
    yield "short id", [HELLO, call(args, "x"), result("y", "x")]
    yield "empty calls", [HELLO, {"role": "assistant", "content": "Hi", "tool_calls": []}, HELLO]
    yield "orphan result", [HELLO, result("lost")]
    yield "result parts", [HELLO, call(args), result([{"type": "text", "text": "part"}])]
    yield "result name", [HELLO, call(args), result("x", name="get_weather"), result("y", name="now")]
    yield "think", [HELLO, {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nHi!"}, HELLO]
    yield "think only", [HELLO, {"role": "assistant", "content": "<think>hmm"}, HELLO]
    yield (
        "reasoning",
        [
            HELLO,
            {"role": "assistant", "content": "Hi!", "reasoning_content": "because"},
            HELLO,
            {"role": "assistant", "content": "", "reasoning_content": "more\n"},
        ],
    )
    yield "thinking", [HELLO, {"role": "assistant", "content": "Hi!", "thinking": "deep"}]
    yield "thinking call", [HELLO, call(args, thinking="deep", reasoning_content="r"), result("z"), HI]
    yield "prefix", [HELLO, {"role": "assistant", "content": "So", "prefix": True}]
    yield "big number", [HELLO, call({"n": 12345678901234567890, "f": 1e22, "g": 0.1, "i": -0.0}), result("n")]
    yield (
        "long",
        [
            m
            for i in range(12)
            for m in ({"role": "user", "content": f"q{i} " * i}, {"role": "assistant", "content": f"a{i}"})
        ]
        + [HELLO],
    )


def options():
    yield "", {}
    yield "gen", {"add_generation_prompt": True}
    yield "tokens", {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    yield "tools", {"tools": [WEATHER, NESTED], "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    yield "tools2", {"tools": [PLAIN, BARE], "bos_token": "<s>", "eos_token": "</s>", "tools_in_user_message": False}
    yield "no tools", {"tools": None, "documents": None, "bos_token": "", "eos_token": None}
    yield "empty tools", {"tools": [], "documents": []}
    yield (
        "thinking",
        {"enable_thinking": True, "thinking": True, "add_generation_prompt": True, "reasoning_effort": "high"},
    )
    yield (
        "no thinking",
        {"enable_thinking": False, "thinking": False, "add_generation_prompt": True, "clear_thinking": False},
    )
    yield (
        "documents",
        {
            "documents": [
                {"title": "T", "text": "D é", "doc_id": 1, "n": [1, {"x": None}]},
                {"title": "U", "text": "E", "doc_id": 2},
            ],
            "controls": {"citations": True, "hallucinations": True},
            "enable_citations": True,
            "add_generation_prompt": True,
        },
    )
    yield (
        "builtin tools",
        {
            "builtin_tools": ["browser", "python"],
            "tools": [WEATHER],
            "model_identity": "I am X.",
            "code_interpreter": True,
            "date_string": "1 Jan 2025",
            "add_generation_prompt": True,
        },
    )
    yield "odd tools", {"tools": [{"type": "function"}, {}, {"function": {"name": "f"}}]}


def contexts():
    for option, more in options():
        for name, messages in conversations():
            yield f"[{name}; {option}]", {"messages": messages, **more}
