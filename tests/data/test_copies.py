"""Copy documents: the repeated tokens and the loss mask."""

from __future__ import annotations

from pathlib import Path

from openafm.data.copies import CopiesConfig, copies, pack_copies
from openafm.data.shards.token_shards import open_shards
from openafm.tokenizer.bpe import NUM_SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer(merges=())


def test_only_the_repetition_is_learned_from_its_second_token_on() -> None:
    special = TOKENIZER.special
    for document in copies(CopiesConfig(lengths=(4, 8)), 50, TOKENIZER):
        middle = document.tokens.index(special.assistant)
        prompt, answer = document.tokens[1:middle], document.tokens[middle + 1 : -1]
        assert (document.tokens[0], document.tokens[-1]) == (special.bos, special.turn_end)
        assert len(answer) in (4, 8)
        assert any(prompt[i : i + len(answer)] == answer for i in range(len(prompt)))
        assert all(token >= NUM_SPECIAL_TOKENS for token in prompt + answer)
        learned = [token for token, learn in zip(document.tokens, document.loss_mask, strict=True) if learn]
        assert learned == answer[1:]


def test_packing_is_deterministic(tmp_path: Path) -> None:
    first = pack_copies(CopiesConfig(), 20, tmp_path / "a", TOKENIZER)
    second = pack_copies(CopiesConfig(), 20, tmp_path / "b", TOKENIZER)
    assert first.digest == second.digest
    assert first.num_documents == 20
    assert open_shards(tmp_path / "a").document(0, 0).source == "copies"
