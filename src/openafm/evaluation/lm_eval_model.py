"""openafm behind lm-evaluation-harness.

    python -m openafm.evaluation.lm_eval_model --model openafm --model_args bundle=NAME ...

The results equal those of the harness's `hf` model on the same weights. Contexts that begin alike are computed once, and
requests are computed in batches. lm-eval 0.4 reads no entry points of other packages, so this module registers the model and
then runs the harness's own command line.

Shapes: N tokens of one sequence, V rows of the vocabulary.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from numpy.typing import NDArray

from openafm.bundle import open_bundle
from openafm.core.errors import UsageError
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.likelihood import CHUNK_TOKENS
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.decoding.stop_texts import StopTexts
from openafm.runtime.engines.base import Sequence as EngineSequence
from openafm.runtime.engines.selection import open_engine
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn
from openafm.tokenizer.template import opened

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_ROLES: dict[str, type[Instructions | UserTurn | AssistantTurn]] = {
    "system": Instructions,
    "user": UserTurn,
    "assistant": AssistantTurn,
}


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A context, which may be shared with other requests, the tokens to score after it, and the place of the result."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    place: int


@register_model("openafm")
class OpenafmLM(TemplateLM):  # type: ignore[misc]
    """A bundle as a model of the harness.

    Args:
        bundle: name or path.
        adapter: folder of an adapter; by default the bundle's recovery adapter, if any.
        batch_size: contexts or answers that are computed together.
        max_length: most tokens of context and answer; by default the context window.
    """

    def __init__(
        self,
        bundle: str = "",
        adapter: str | None = None,
        batch_size: int | str = 8,
        max_length: int | None = None,
        **ignored: Any,
    ) -> None:
        super().__init__()
        from openafm.adapters.package import open_adapter

        if not bundle:
            raise UsageError("--model_args has no bundle; pass bundle=NAME, a name of `openafm use` or a path")
        self._bundle = open_bundle(bundle)
        self._engine = open_engine(self._bundle, None if adapter is None else open_adapter(Path(adapter)))
        self._tokenizer, self._template = self._bundle.tokenizer, self._bundle.template
        self.batch_size = 8 if str(batch_size).startswith("auto") else int(batch_size)
        self.max_length = min(int(max_length or self._engine.context_length), self._engine.context_length)
        self._encoder = self._make_encoder()
        is_ours = not self._tokenizer.is_imported
        self._prefix = [self._tokenizer.special.bos] if is_ours else list(self._encoder.encode("").ids)

    def _make_encoder(self) -> Any:
        """The tokenizer as transformers uses it: the spelling of a special token is that token, as in rendered chats."""
        import tokenizers

        return tokenizers.Tokenizer.from_str(self._tokenizer.to_json())

    @property
    def eot_token_id(self) -> int:
        return self._template.stop_token(self._tokenizer)

    @property
    def prefix_token_id(self) -> int:
        return self._prefix[0] if self._prefix else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return str(self._bundle.signature)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return what identifies the chat template in the harness's caches."""
        return str(self._bundle.signature) if chat_template else ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        ids: list[int] = self._encoder.encode(string, add_special_tokens=False).ids
        has_prefix = ids[: len(self._prefix)] == self._prefix
        return ids if add_special_tokens is False or has_prefix else [*self._prefix, *ids]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation; without `add_generation_prompt` its last answer stays open."""
        turns: list[Turn] = [_ROLES[message["role"]](text=message["content"]) for message in chat_history]
        is_open = not add_generation_prompt and isinstance(turns[-1], AssistantTurn)
        closed = turns[:-1] if is_open else turns
        tokens = self._template.encode(self._tokenizer, opened(closed)).tokens
        tokens = [*tokens, *self._template.generation_prompt(self._tokenizer)]
        return self._tokenizer.spell(tokens) + (chat_history[-1]["content"] if is_open else "")

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **ignored: Any
    ) -> list[tuple[float, bool]]:
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        with _Scoring(self._engine) as scoring:
            for batch in self._batches(requests):
                for request, result in scoring.results(batch):
                    results[request.place] = result
        return results

    def _batches(self, requests: list[tuple[Any, list[int], list[int]]]) -> Iterator[list[_Request]]:
        """Requests with up to `batch_size` different contexts, in an order that puts similar contexts side by side."""
        cut = []
        for place, (_, context, continuation) in enumerate(requests):
            kept = (context + continuation)[-(self.max_length + 1) :]
            num_scored = min(len(continuation), len(kept) - 1)
            split = len(kept) - num_scored
            cut.append(_Request(context=tuple(kept[:split]), continuation=tuple(kept[split:]), place=place))
        cut.sort(key=lambda request: request.context)
        groups = [list(group) for _, group in itertools.groupby(cut, key=lambda request: request.context)]
        for start in range(0, len(groups), self.batch_size):
            yield [request for group in groups[start : start + self.batch_size] for request in group]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        totals = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            scored = self._loglikelihood_tokens([(None, *make_disjoint_window(window)) for window in windows])
            totals.append(sum(log_probability for log_probability, _ in scored))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        with ThreadPoolExecutor(self.batch_size) as pool:  # the engine combines the steps of threads
            return list(pool.map(self._answer, [request.args for request in requests]))

    def _answer(self, arguments: tuple[str, dict[str, Any]]) -> str:
        context, stated = arguments
        settings = normalize_gen_kwargs(stated, 256)
        max_tokens = int(settings["max_gen_toks"])
        if max_tokens >= self.max_length:
            raise UsageError(f"max_gen_toks {max_tokens} leaves no room for a context in {self.max_length} tokens; lower it")
        tokens = self.tok_encode(context)[-(self.max_length - max_tokens) :]
        sequence = self._engine.new_sequence()
        stops = self._template.stop_tokens(self._tokenizer)
        generation = generate(
            self._engine, sequence, tokens, sampling=_sampling(settings), stop_tokens=stops, max_tokens=max_tokens
        )
        stop = StopTexts([str(until) for until in settings["until"]])
        text, num_pushed, answer = "", 0, list[int]()
        for event in generation:
            if event.is_stop:
                break
            if event.token < self._tokenizer.vocab_size:  # the model may have more rows
                answer.append(event.token)
            decoded = self._tokenizer.decode(answer)
            if decoded.endswith("\ufffd"):  # a character that is not complete yet
                continue
            text += stop.push(decoded[num_pushed:])
            num_pushed = len(decoded)
            if stop.found is not None:
                break
        generation.close()
        self._engine.close(sequence)
        return text + stop.push(self._tokenizer.decode(answer)[num_pushed:]) + stop.finish()


class _Scoring:
    """Scores batches of requests. The beginning that the contexts of a batch share is kept for the next batch."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._root = engine, engine.new_sequence()
        self._shared: tuple[int, ...] = ()

    def __enter__(self) -> _Scoring:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close(self._root)

    def results(self, batch: Sequence[_Request]) -> Iterator[tuple[_Request, tuple[float, bool]]]:
        """Yield the log-likelihood of each request, and whether greedy decoding would give it."""
        contexts = sorted({request.context[:-1] for request in batch})  # the last token predicts the continuation
        self._share(_common(contexts[0], contexts[-1]))
        prefixes = {context: self._engine.fork(self._root) for context in contexts}
        rest = [(prefixes[context], context[len(self._shared) :]) for context in contexts]
        for entries in _chunks(rest):
            self._engine.step(entries)
        sequences = [self._engine.fork(prefixes[request.context[:-1]]) for request in batch]
        inputs = [(*request.context[-1:], *request.continuation[:-1]) for request in batch]
        logits = self._all_logits(list(zip(sequences, inputs, strict=True)), [request.continuation for request in batch])
        for sequence in (*prefixes.values(), *sequences):
            self._engine.close(sequence)
        yield from zip(batch, logits, strict=True)

    def _share(self, shared: tuple[int, ...]) -> None:
        kept = len(_common(shared, self._shared))
        self._engine.rollback(self._root, len(self._shared) - kept)
        for entries in _chunks([(self._root, shared[kept:])]):
            self._engine.step(entries)
        self._shared = shared

    def _all_logits(
        self, inputs: list[tuple[EngineSequence, tuple[int, ...]]], targets: list[tuple[int, ...]]
    ) -> list[tuple[float, bool]]:
        totals = {id(sequence): (0.0, True, target) for (sequence, _), target in zip(inputs, targets, strict=True)}
        for entries in _chunks(inputs):  # all logits of a long text do not fit into memory
            for (sequence, tokens), logits_NV in zip(entries, self._engine.step(entries, "all"), strict=True):
                total, is_greedy, target = totals[id(sequence)]
                log_p, all_greedy = _score(logits_NV, target[: len(tokens)])
                totals[id(sequence)] = (total + log_p, is_greedy and all_greedy, target[len(tokens) :])
        return [totals[id(sequence)][:2] for sequence, _ in inputs]


def _score(logits_NV: NDArray[np.float32], targets: Sequence[int]) -> tuple[float, bool]:
    """The log probability of targets over all rows of the model, as the harness's other models compute it."""
    targets_N = np.asarray(targets)
    wide_NV = logits_NV.astype(np.float64)
    wide_NV -= wide_NV.max(axis=1, keepdims=True)
    chosen_N = np.take_along_axis(wide_NV, targets_N[:, None], axis=1)[:, 0]
    return float((chosen_N - np.log(np.exp(wide_NV).sum(axis=1))).sum()), bool((wide_NV.argmax(axis=1) == targets_N).all())


def _chunks(
    entries: Iterable[tuple[EngineSequence, tuple[int, ...]]],
) -> Iterator[list[tuple[EngineSequence, tuple[int, ...]]]]:
    """Steps that feed all entries, at most CHUNK_TOKENS of each at a time."""
    entries = list(entries)
    for start in range(0, max((len(tokens) for _, tokens in entries), default=0), CHUNK_TOKENS):
        parts = [(sequence, tokens[start : start + CHUNK_TOKENS]) for sequence, tokens in entries]
        yield [(sequence, tokens) for sequence, tokens in parts if tokens]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return tuple(token for token, _ in pairs)


def _sampling(settings: dict[str, Any]) -> SamplingConfig:
    if not settings.get("do_sample") or not settings.get("temperature"):
        return GreedyConfig()
    return RandomConfig(
        temperature=float(settings["temperature"]),
        top_k=settings.get("top_k"),
        top_p=settings.get("top_p"),
        seed=settings.get("seed"),
    )


def main() -> None:
    """Run the harness's command line with this model registered."""
    from lm_eval.__main__ import cli_evaluate

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    cli_evaluate()


if __name__ == "__main__":
    main()
