"""litellm: completion and streaming through its OpenAI and Anthropic providers."""

import sys

import litellm

messages = [{"role": "user", "content": "Hello"}]
options = {"messages": messages, "max_tokens": 8, "api_key": "unused"}
whole = litellm.completion(model="openai/nano", base_url=f"{sys.argv[1]}/v1", **options)
assert whole.choices[0].message.content
chunks = litellm.completion(model="openai/nano", base_url=f"{sys.argv[1]}/v1", stream=True, **options)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
other = litellm.completion(model="anthropic/nano", base_url=sys.argv[1], **options)
assert other.choices[0].message.content == whole.choices[0].message.content
