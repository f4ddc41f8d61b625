"""The trajectory generator: samples groups with the newest weights, computes their rewards, writes them to the buffer."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from openafm.core.config import from_dict
from openafm.core.registry import load_plugins
from openafm.core.regular_files import read_document
from openafm.core.worker_process import unit
from openafm.rl.buffer import ReplayBuffer
from openafm.rl.config import CONFIG, RLConfig
from openafm.rl.decoding import DecodedGroup, GroupDecoder, GroupRequest
from openafm.rl.engines import policy_engine, reference_policy, start_bundle
from openafm.rl.events import EventLog
from openafm.rl.images import PromptImages
from openafm.rl.packing import ImageViews, one_row
from openafm.rl.reference import reference_log_probs
from openafm.rl.rewards.base import Reward
from openafm.rl.trajectories import Group, Score, Trajectory
from openafm.rl.weights import WeightStore
from openafm.runtime.engines.base import Engine
from openafm.training.objectives.policy_config import PolicyObjectiveConfig

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder

POLL_STEPS = 8
"""Decode steps between two looks at the weight store, if generators swap weights between tokens."""
_SCORING_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Task:
    """Consecutive groups to sample together, for the run in `folder`."""

    folder: str
    numbers: tuple[int, ...]


def generate(task: Task) -> int:
    """Sample the groups of a task and write them to the buffer; return the number of tokens.

    Called in a worker process, which keeps its generator for the next task.
    """
    with unit(task.numbers[0]):  # the first task loads libraries and weights, which has the time limit by itself
        generator = _generator(task.folder)
    with unit(task.numbers[0]):
        return generator.generate(task.numbers)


@functools.lru_cache(maxsize=1)
def _generator(folder: str) -> TrajectoryGenerator:
    import torch

    torch.set_num_threads(1)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)  # those of the policy updater: a generator computes alone
    path = Path(folder)
    values = json.loads(read_document(path / CONFIG))
    load_plugins(values.get("plugins", ()))
    return TrajectoryGenerator(from_dict(RLConfig, values), path, part=f"generator-{os.getpid()}")


class TrajectoryGenerator:
    """A replica: an engine with the policy, one with the reference if the KL divergence counts, and the rewards."""

    def __init__(self, config: RLConfig, folder: Path, part: str) -> None:
        bundle = start_bundle(config)
        self._config = config
        self._engine = policy_engine(config)
        self._reference = reference_policy(bundle, self._engine) if config.objective.kl_weight else None
        self._tokenizer = bundle.tokenizer
        self._prompts, self._reward = config.prompts.build(), config.reward.build()
        self._images = PromptImages(self._prompts, bundle.config)
        self._decoder = GroupDecoder(
            self._engine,
            bundle.tokenizer,
            bundle.template,
            temperature=config.objective.temperature,
            max_tokens=config.max_tokens,
            max_turns=config.max_turns,
            images=self._images,
        )
        self._buffer = ReplayBuffer(folder / "buffer", bundle.tokenizer.digest)
        self._weights = WeightStore(folder / "weights")
        self._events = EventLog(folder, part)
        self._scoring = ThreadPoolExecutor(_SCORING_THREADS, thread_name_prefix="openafm-reward")
        self._steps = 0

    def generate(self, numbers: Sequence[int]) -> int:
        """Sample groups, score each while others are decoded, and write them to the buffer; return the tokens."""
        self._load_newest()
        swaps = self._config.swap == "tokens" and self._config.lag > 0
        scored: list[Future[None]] = []
        num_tokens = 0
        start = time.time()
        requests = [self._request(number) for number in numbers]
        for group in self._decoder.decode(requests, self._config.max_rows, self._poll if swaps else lambda: None):
            num_tokens += sum(len(sample.tokens_N) for sample in group.samples)
            scored.append(self._scoring.submit(self._finish, group, self._trajectories(group)))
        self._events.add("decode", start, time.time(), num_tokens)
        with self._events.span("reward"):
            for future in scored:
                future.result()
        return num_tokens

    def _request(self, number: int) -> GroupRequest:
        prompt = self._prompts.prompt(number)
        count = self._config.group_size
        return GroupRequest(
            number=number,
            prompt=prompt,
            environments=[self._prompts.environment(prompt) for _ in range(count)],
            seeds=[sample_seed(self._config.trainer.seed, number, index) for index in range(count)],
        )

    def _trajectories(self, group: DecodedGroup) -> list[Trajectory]:
        """Return the samples of a group with the log-probabilities of the reference, without rewards."""
        trajectories = group.trajectories()
        if self._reference is None or not trajectories:
            return trajectories
        return with_reference(trajectories, self._reference, self._config.objective, self._images.views)

    def _finish(self, group: DecodedGroup, trajectories: list[Trajectory]) -> None:
        """Score a group and write it. Runs in a thread."""
        scores = score(self._reward, group) if trajectories else []
        scored = tuple(replace(each, score=found) for each, found in zip(trajectories, scores, strict=True))
        self._buffer.add(
            Group(number=group.request.number, trajectories=scored, tokenizer=self._tokenizer.digest, error=group.error)
        )

    def _poll(self) -> None:
        self._steps += 1
        if self._steps % POLL_STEPS == 0:
            self._load_newest()

    def _load_newest(self) -> None:
        """Load the newest published weights, unless the engine has them.

        Raises:
            WeightStoreError: the file is damaged.
        """
        version = self._weights.newest()
        if version > self._engine.weights_version:
            with self._events.span("load weights"):
                self._engine.update_weights(self._weights.load(version), version)


def with_reference(
    trajectories: Sequence[Trajectory],
    reference: Decoder | Engine,
    objective: PolicyObjectiveConfig,
    views: ImageViews | None = None,
) -> list[Trajectory]:
    """Return the trajectories of a group with their log-probabilities under a reference policy.

    `views` returns the views of the images of the prompt.
    """
    if isinstance(reference, Engine):
        found = reference_log_probs(reference, trajectories, objective)
        return [replace(each, reference_log_probs_N=part) for each, part in zip(trajectories, found, strict=True)]
    from openafm.training.objectives.policy import batch_log_probs

    masks = [each.loss_mask_N for each in trajectories]
    log_probs_N = np.zeros(sum(map(len, masks)), np.float32)
    if any(mask.any() for mask in masks):
        log_probs_N[np.concatenate(masks)] = batch_log_probs(reference, one_row(trajectories, views), objective).numpy()
    parts = np.split(log_probs_N, np.cumsum([len(mask) for mask in masks])[:-1])
    return [replace(each, reference_log_probs_N=part) for each, part in zip(trajectories, parts, strict=True)]


def score(reward: Reward, group: DecodedGroup) -> list[Score]:
    """Return the scores of a group. Samples without a finite reward get a score with an error; they never end the run."""
    samples = [each.sample for each in group.samples]
    try:
        scores = reward(samples)
    except Exception as error:  # a reward may be anything: it must not end the run
        return [Score(reward=0.0, error=f"{type(error).__name__}: {error}") for _ in samples]
    if len(scores) != len(samples):
        return [Score(reward=0.0, error=f"the reward returned {len(scores)} scores") for _ in samples]
    return [
        each if each.error or np.isfinite(each.reward) else Score(reward=0.0, error=f"the reward is {each.reward}")
        for each in scores
    ]


def sample_seed(seed: int, group: int, index: int) -> int:
    """Return the seed of a sample."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {group} {index}".encode(), digest_size=16).digest(), "big")
