"""Small random checkpoints of each family, saved by transformers itself, with tokenizers trained here.

The chat templates imitate those of each family; none is a copy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

VOCAB_ROWS = 704  # more rows than tokens, as in real checkpoints
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_ROWS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.15,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_SCALING = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}

WORDS = Regex(r"'(?:s|t|re|ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Functions\\n\\nYou may call these functions, each described as JSON:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nA call is JSON in <tool_call></tool_call>: " }}
    {{- "{\\"name\\": <name>, \\"arguments\\": <object>}<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- elif DEFAULT %}
    {{- '<|im_start|>system\\n' + DEFAULT + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        THINK
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if THINKS and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
# Qwen3: only the last answer keeps its thoughts.
THINK_LAST = """
        {%- if loop.last %}{{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}{%- endif %}
"""

LLAMA = """
{{- bos_token }}
{%- if tools_in_user_message is not defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set told = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set told = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + (strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024") + "\\n\\n" }}
{%- if tools and not tools_in_user_message %}
    {{- "You have these functions. To call one, write {\\"name\\": function, \\"parameters\\": arguments}.\\n\\n" }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- told }}{{- "<|eot_id|>" }}
{%- if tools and tools_in_user_message %}
    {%- set first = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
    {{- "<|start_header_id|>user<|end_header_id|>\\n\\nYou have these functions:\\n\\n" }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception("One call at a time!") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>" + message.role + "<|end_header_id|>\\n\\n" + message.content | trim + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}{%- endif %}
"""

# SmolLM3: always a system turn with a mode and the date, an empty thought in every answer, tools as Python reprs.
SMOLLM3 = """
{%- set told = messages[0].content if messages[0].role == "system" else "" -%}
{%- set mode = "/no_think" if enable_thinking is defined and not enable_thinking else "/think" -%}
{{- "<|im_start|>system\\n## Metadata\\n\\nToday: " + strftime_now("%d %B %Y") + "\\nMode: " + mode + "\\n\\n" -}}
{{- "## Instructions\\n\\n" + (told or "You are a small model.") + "\\n\\n" -}}
{%- if xml_tools -%}
    {{- "### Tools\\n\\nCall functions inside <tool_call></tool_call>.\\n\\n<tools>\\n" -}}
    {%- for tool in xml_tools -%}{{- (tool | string) ~ "\\n" -}}{%- endfor -%}
    {{- "</tools>\\n\\n" -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- if message.role == "user" -%}
        {{- "<|im_start|>user\\n" + message.content + "<|im_end|>\\n" -}}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {{- "<|im_start|>assistant\\n" + ("<think>\\n\\n</think>\\n" if mode == "/no_think") -}}
        {{- message.content.lstrip("\\n") + "<|im_end|>\\n" -}}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
        {{- "<|im_start|>user\\n" + message.content + "<|im_end|>\\n" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" + ("<think>\\n\\n</think>\\n" if mode == "/no_think") -}}
{%- endif -%}
"""


def chatml(*, default: str = "", thinks: bool = False) -> str:
    text = CHATML.replace("DEFAULT", json.dumps(default)).replace("THINKS", "true" if thinks else "false")
    return text.replace("THINK\n", f"{THINK_LAST if thinks else ''}\n")


FAMILIES = ("llama", "qwen2", "qwen3", "smollm3")
TEMPLATES = {
    "llama": LLAMA,
    "qwen2": chatml(default="You are a helpful assistant."),
    "qwen3": chatml(thinks=True),
    "smollm3": SMOLLM3,
}


def config(family: str, **changes: Any) -> Any:
    common = SHAPE | {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None} | changes
    match family:
        case "llama":
            return transformers.LlamaConfig(**{"rope_parameters": LLAMA3_SCALING, "tie_word_embeddings": False} | common)
        case "qwen2":
            return transformers.Qwen2Config(**{"tie_word_embeddings": True} | common)
        case "qwen3":
            return transformers.Qwen3Config(**{"tie_word_embeddings": False, "head_dim": 24} | common)
    return transformers.SmolLM3Config(**{"tie_word_embeddings": True} | common)


def model(family: str, seed: int = 0, **changes: Any) -> Any:
    """Random weights; norms differ from 1 and biases from 0, so that a missing one changes logits."""
    torch.manual_seed(seed)
    theirs = getattr(transformers, type(config(family)).__name__.replace("Config", "ForCausalLM"))(config(family, **changes))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
    return theirs.eval()


def tokenizer(family: str) -> tokenizers.Tokenizer:
    """Byte-level BPE with the special tokens of the family, those of tools and thoughts without the special flag."""
    trained = tokenizers.Tokenizer(models.BPE(ignore_merges=family == "llama"))
    if family.startswith("qwen"):
        trained.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(WORDS, "isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    if family == "llama":
        trained.add_special_tokens(
            ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"]
        )
    else:
        trained.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        for name in ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"):
            trained.add_tokens([AddedToken(name, special=False, normalized=False)])
    return trained


def save(folder: Path, family: str, *, dtype: torch.dtype = torch.float32, shards: str = "5GB", **changes: Any) -> Any:
    """Write a checkpoint and return the model as transformers reads it in fp32."""
    theirs = model(family, **changes).to(dtype)
    theirs.save_pretrained(folder, max_shard_size=shards)
    save_tokenizer(folder, family)
    return type(theirs).from_pretrained(folder, dtype=torch.float32).eval()


def save_tokenizer(folder: Path, family: str, template: str | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trained = tokenizer(family)
    trained.save(str(folder / "tokenizer.json"))
    end, stop = ("<|end_of_text|>", "<|eot_id|>") if family == "llama" else ("<|endoftext|>", "<|im_end|>")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>" if family == "llama" else None,
        "eos_token": stop,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATES[family] if template is None else template)
    eos = [trained.token_to_id(end), trained.token_to_id(stop)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
