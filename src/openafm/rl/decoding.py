"""Sampling of groups: the samples of several prompts decoded together, with what training needs of every token.

Continuous batching: the next group starts as soon as its samples fit beside those that are not complete. A prompt is
prefilled once for its group. The tokens depend on the weights, the seeds and the groups of the call, not on timing.

Shape suffixes: N tokens after the prompt, R rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from openafm.rl.images import PromptImages
from openafm.rl.prompt_sources import Environment
from openafm.rl.prompts import RLPrompt
from openafm.rl.trajectories import FinishReason, Sample, Score, Trajectory
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.matcher import Matcher
from openafm.runtime.decoding.prefill import prefill
from openafm.runtime.decoding.row_sampling import sample_rows
from openafm.runtime.decoding.sampling import RandomConfig, Sampler
from openafm.runtime.engines.base import Engine, InsertedEmbeddings, InsertedEmbeddingsError
from openafm.runtime.engines.base import Sequence as EngineSequence
from openafm.runtime.engines.image_cache import UnreadableImageError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import AssistantTurn, ToolTurn, UserTurn
from openafm.tokenizer.template import (
    BaseChatTemplate,
    EncodedText,
    ImageSpan,
    MalformedAnswerError,
    concatenated,
    opened,
)


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """A prompt to sample. `environments` has one entry for each sample, `seeds` too."""

    number: int
    prompt: RLPrompt
    environments: Sequence[Environment | None]
    seeds: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class DecodedSample:
    """A complete sample; the arrays as in `Trajectory`."""

    sample: Sample
    tokens_N: npt.NDArray[np.int32]
    loss_mask_N: npt.NDArray[np.bool_]
    log_probs_N: npt.NDArray[np.float32]
    versions_N: npt.NDArray[np.int32]
    support_NV: npt.NDArray[np.uint8] | None


@dataclass(frozen=True, kw_only=True)
class DecodedGroup:
    """The samples of a group, in order; none and an error if the prompt has an unreadable image or is too long.

    `images` are the positions of images among `prompt_tokens`.
    """

    request: GroupRequest
    prompt_tokens: tuple[int, ...]
    samples: tuple[DecodedSample, ...]
    error: str = ""
    images: tuple[ImageSpan, ...] = ()

    def trajectories(self) -> list[Trajectory]:
        """Return the samples as trajectories, with rewards of 0."""
        return [
            Trajectory(
                sample=each.sample,
                score=Score(reward=0.0),
                group=self.request.number,
                index=index,
                prompt_tokens=self.prompt_tokens,
                tokens_N=each.tokens_N,
                loss_mask_N=each.loss_mask_N,
                log_probs_N=each.log_probs_N,
                versions_N=each.versions_N,
                support_NV=each.support_NV,
                images=self.images,
            )
            for index, each in enumerate(self.samples)
        ]


class GroupDecoder:
    """Samples groups with an engine.

    Args:
        temperature: of the sampling, for tokens that the grammar does not force.
        max_tokens: most tokens after the prompt.
        max_turns: most turns of the policy.
        images: reads the images of prompts; None if prompts have no images.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: BaseChatTemplate,
        *,
        temperature: float,
        max_tokens: int,
        max_turns: int,
        images: PromptImages | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.template = engine, tokenizer, template
        self.temperature, self.max_tokens, self.max_turns = temperature, max_tokens, max_turns
        self.stop_tokens = template.stop_tokens(tokenizer)
        self._grammars: GrammarCompiler | None = None
        self._images = images
        self._embeddings = None if images is None else images.cache(engine)

    def decode(
        self, requests: Sequence[GroupRequest], max_rows: int, before_step: Callable[[], None] = lambda: None
    ) -> Iterator[DecodedGroup]:
        """Yield the groups as they are completed. `before_step` is called before each decode step."""
        waiting, running = deque(requests), list[_Group]()
        while waiting or running:
            num_rows = sum(len(group.active) for group in running)
            while waiting and (not running or num_rows + len(waiting[0].seeds) <= max_rows):
                group = self._start(waiting.popleft())
                num_rows += len(group.active)
                running.append(group)
            for group in [group for group in running if not group.active]:
                running.remove(group)
                yield group.result()
            rows = [row for group in running for row in group.active]
            if rows:
                before_step()
                logits = self.engine.step([(row.sequence, row.take_waiting()) for row in rows])
                self._advance(rows, np.stack(logits))

    def grammar(self, prompt: RLPrompt) -> Grammar | None:
        """Return the grammar of the answer; None if the prompt has no response format."""
        last = prompt.conversation.turns[-1]
        if not isinstance(last, UserTurn) or last.response_format is None:
            return None
        if self._grammars is None:
            self._grammars = GrammarCompiler(self.tokenizer, self.template)
        return self._grammars.json_schema(last.response_format)

    def encoded_prompt(self, prompt: RLPrompt) -> EncodedText:
        """Return the conversation and the opening of the policy's turn."""
        encoded = self.template.encode(self.tokenizer, opened(prompt.conversation.turns))
        opening = self.template.generation_prompt(self.tokenizer)
        return concatenated([encoded, EncodedText(tokens=opening, loss_mask=[False] * len(opening))])

    def _inserted(self, encoded: EncodedText) -> list[InsertedEmbeddings]:
        """Return the embeddings of the images of a prompt.

        Raises:
            UnreadableImageError: an image cannot be read, or has no resolution mode.
            InsertedEmbeddingsError: the model reads no images.
        """
        if not encoded.images:
            return []
        if self._images is None or self._embeddings is None:
            raise InsertedEmbeddingsError("the prompt has images; build the decoder with `images`")
        self._images.check(encoded.images)
        return self._images.inserted(self._embeddings, encoded)

    def _start(self, request: GroupRequest) -> _Group:
        encoded = self.encoded_prompt(request.prompt)
        tokens = encoded.tokens
        if len(tokens) + 1 > self.engine.context_length:
            error = f"the prompt has {len(tokens)} tokens, the context window {self.engine.context_length}"
            return _Group(request, encoded, [], error)
        try:
            inserted = self._inserted(encoded)
        except UnreadableImageError as error:
            return _Group(request, encoded, [], str(error))
        shared = self.engine.new_sequence()
        logits_V = prefill(self.engine, shared, tokens, inserted=inserted)
        assert logits_V is not None
        grammar = self.grammar(request.prompt)
        rows = []
        for index, (seed, environment) in enumerate(zip(request.seeds, request.environments, strict=True)):
            sequence = shared if index == len(request.seeds) - 1 else self.engine.fork(shared)
            row = _Row(self, request.prompt, sequence, environment, grammar, seed)
            rows.append(row)
        self._advance(rows, np.tile(logits_V, (len(rows), 1)))
        return _Group(request, encoded, rows)

    def _advance(self, rows: Sequence[_Row], logits_RV: npt.NDArray[np.float32]) -> None:
        """Choose the next token of each row; those of rows without a grammar together."""
        logits_RV = logits_RV[:, : self.tokenizer.vocab_size]
        free = [index for index, row in enumerate(rows) if row.matcher is None]
        if free:
            free_RV, free_rows = logits_RV[free], [rows[index] for index in free]
            positions = [row.num_tokens for row in free_rows]
            tokens = sample_rows([row.sampler for row in free_rows], free_RV, positions)
            log_probs = token_log_probs(free_RV, tokens, self.temperature).tolist()
            for row, token, log_prob in zip(free_rows, tokens, log_probs, strict=True):
                row.take(token, log_prob)
        for row, logits_V in zip(rows, logits_RV, strict=True):
            if row.matcher is not None:
                row.advance(logits_V)


class _Group:
    def __init__(self, request: GroupRequest, prompt: EncodedText, rows: list[_Row], error: str = "") -> None:
        self._request, self._prompt, self._rows, self._error = request, prompt, rows, error

    @property
    def active(self) -> list[_Row]:
        return [row for row in self._rows if row.finish is None]

    def result(self) -> DecodedGroup:
        return DecodedGroup(
            request=self._request,
            prompt_tokens=tuple(self._prompt.tokens),
            samples=tuple(row.result() for row in self._rows),
            error=self._error,
            images=self._prompt.images,
        )


@dataclass
class _Tokens:
    """The tokens of a sample after the prompt."""

    ids: list[int] = field(default_factory=list)
    is_chosen: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    support: list[npt.NDArray[np.uint8] | None] = field(default_factory=list)

    def append(
        self, token: int, version: int, log_prob: float | None = None, support: npt.NDArray[np.uint8] | None = None
    ) -> None:
        """Append a token; one without a log-probability was not chosen by the policy."""
        self.ids.append(token)
        self.is_chosen.append(log_prob is not None)
        self.log_probs.append(0.0 if log_prob is None else log_prob)
        self.versions.append(version)
        self.support.append(support)


class _Row:
    """One sample that is being decoded. `finish` is None until it is complete."""

    def __init__(
        self,
        decoder: GroupDecoder,
        prompt: RLPrompt,
        sequence: EngineSequence,
        environment: Environment | None,
        grammar: Grammar | None,
        seed: int,
    ) -> None:
        self._decoder, self._prompt, self.sequence, self._environment = decoder, prompt, sequence, environment
        self.matcher: Matcher | None = None if grammar is None else grammar.matcher()
        self.sampler: Sampler = RandomConfig(temperature=decoder.temperature, seed=seed).build()
        self._tokens, self._turns = _Tokens(), list[AssistantTurn | ToolTurn]()
        self._turn_start = self._num_fed = 0
        self.finish: FinishReason | None = None

    def take_waiting(self) -> list[int]:
        """Return the tokens that the next step feeds."""
        waiting = self._tokens.ids[self._num_fed :]
        self._num_fed = len(self._tokens.ids)
        return waiting

    @property
    def num_tokens(self) -> int:
        return len(self._tokens.ids)

    def advance(self, logits_V: npt.NDArray[np.float32]) -> None:
        """Choose the next token under the grammar, and append those that it forces after it."""
        self._choose(logits_V)
        while self.finish is None and self.matcher is not None and (forced := self.matcher.forced()):
            self._append(forced[0], None, None)
        self._check_length()

    def take(self, token: int, log_prob: float) -> None:
        """Append a token that was chosen without a grammar, and the outputs of tools that it calls."""
        self._append(token, log_prob, None)
        self._check_length()

    def _check_length(self) -> None:
        has_room = self.sequence.length + len(self._tokens.ids) - self._num_fed < self._decoder.engine.context_length
        if self.finish is None and (len(self._tokens.ids) >= self._decoder.max_tokens or not has_room):
            self._end("length")

    def _choose(self, logits_V: npt.NDArray[np.float32]) -> None:
        if self.matcher is not None and (forced := self.matcher.forced()):
            self._append(forced[0], None, None)
            return
        support = None
        if self.matcher is not None:
            self.matcher.apply(logits_V)
            support = np.packbits(logits_V > -np.inf, bitorder="little")
        token = self.sampler.sample(logits_V, len(self._tokens.ids))
        (log_prob,) = token_log_probs(logits_V[None], [token], self._decoder.temperature).tolist()
        self._append(token, log_prob, support)

    def _append(self, token: int, log_prob: float | None, support: npt.NDArray[np.uint8] | None) -> None:
        self._tokens.append(token, self._decoder.engine.weights_version, log_prob, support)
        if self.matcher is not None:
            self.matcher.accept((token,))
        if token in self._decoder.stop_tokens:
            self._end_turn()

    def _end_turn(self) -> None:
        """Complete the sample, or append the outputs of the tools that the policy calls."""
        turn = self._parse()
        self._turns.append(turn)
        num_turns = sum(isinstance(each, AssistantTurn) for each in self._turns)
        if not turn.tool_calls or self._environment is None or num_turns >= self._decoder.max_turns:
            self._finish("stop")
            return
        outputs = [ToolTurn(name=call.name, text=self._environment.call(call)) for call in turn.tool_calls]
        self._turns += outputs
        decoder = self._decoder
        encoded = decoder.template.encode_outputs(decoder.tokenizer, outputs).tokens
        for token in [*encoded, *decoder.template.generation_prompt(decoder.tokenizer)]:
            self._tokens.append(token, decoder.engine.weights_version)
        self._turn_start = len(self._tokens.ids)

    def _end(self, finish: FinishReason) -> None:
        self._turns.append(self._parse())
        self._finish(finish)

    def _finish(self, finish: FinishReason) -> None:
        self.finish = finish
        self._decoder.engine.close(self.sequence)

    def _parse(self) -> AssistantTurn:
        """Return the present turn. One that is malformed is text, as the policy wrote it."""
        tokens = self._tokens.ids[self._turn_start :]
        try:
            return self._decoder.template.parse_assistant(self._decoder.tokenizer, tokens)
        except MalformedAnswerError:
            return AssistantTurn(text=self._decoder.tokenizer.decode(tokens))

    def result(self) -> DecodedSample:
        assert self.finish is not None
        tokens, last = self._tokens, self._turns[-1]
        sample = Sample(
            prompt=self._prompt,
            turns=tuple(self._turns),
            text=last.text if isinstance(last, AssistantTurn) else "",
            finish_reason=self.finish,
            num_tokens=sum(tokens.is_chosen),
            state={} if self._environment is None else dict(self._environment.state),
        )
        return DecodedSample(
            sample=sample,
            tokens_N=np.array(tokens.ids, np.int32),
            loss_mask_N=np.array(tokens.is_chosen, np.bool_),
            log_probs_N=np.array(tokens.log_probs, np.float32),
            versions_N=np.array(tokens.versions, np.int32),
            support_NV=self._support(),
        )

    def _support(self) -> npt.NDArray[np.uint8] | None:
        """Return the bit masks; tokens that were not chosen have none set."""
        if self.matcher is None:
            return None
        width = math.ceil(self._decoder.tokenizer.vocab_size / 8)
        empty = np.zeros(width, np.uint8)
        return np.stack([empty if mask is None else mask for mask in self._tokens.support])


def token_log_probs(
    logits_RV: npt.NDArray[np.float32], tokens: Sequence[int], temperature: float
) -> npt.NDArray[np.float64]:
    """Return the log-probability of each row's token at a temperature; without top-k and top-p one pass suffices."""
    chosen_R1 = np.take_along_axis(logits_RV, np.array(tokens)[:, None], axis=1)
    scaled_RV = (logits_RV - chosen_R1) / np.float32(temperature)
    highest_R1 = scaled_RV.max(axis=1, keepdims=True)
    sums_R = np.exp(scaled_RV - highest_R1).sum(axis=1, dtype=np.float64)
    log_probs_R: npt.NDArray[np.float64] = -highest_R1[:, 0].astype(np.float64) - np.log(sums_R)
    return log_probs_R
