"""A folder of transformers with the shape of a small Qwen3: random weights, and a tokenizer trained on the sets' texts."""

from __future__ import annotations

from pathlib import Path

from harness.peer_tasks import rows

VOCAB_SIZE = 4_096
_CHATML = """
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def save_random_qwen(folder: Path, data: Path, *, dim: int, layers: int) -> None:
    """Write the folder."""
    import torch
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    words = Regex(r"'(?:s|t|re|ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    trained = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(words, "isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trained.decoder = decoders.ByteLevel()
    texts = [row["question"] + row["answer"] for row in rows(data / "gsm8k" / "test.jsonl")]
    texts += [row["text"] + row["code"] for row in rows(data / "mbpp" / "mbpp.jsonl")]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 3, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    trained.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=dim,
        intermediate_size=3 * dim,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=dim // 4,
        max_position_embeddings=4096,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_CHATML
    )
    tokenizer.save_pretrained(folder)
