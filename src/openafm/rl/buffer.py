"""The replay buffer: a folder with a file for each group, from its generation until a checkpoint covers its training.

buffer/  group-00000000012.npz ...

Files appear by an atomic rename, so the buffer survives the death of any process. Generators write, the policy updater reads
and removes. Pacing bounds the buffer: at most (1 + lag) steps of groups wait for training, and those since the oldest
checkpoint are kept, so that a resumed run trains on the same samples.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_file
from openafm.rl.prompts import RLPrompt
from openafm.rl.trajectories import Group, Sample, Score, Trajectory
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ConversationError, ToolTurn
from openafm.tokenizer.template import ImageSpan

VERSION = 1
_NAME = re.compile(r"group-(\d{11})\.npz")
_ARRAYS = ("tokens_N", "loss_mask_N", "log_probs_N", "versions_N", "reference_log_probs_N", "support_NV")


class BufferError(OpenAFMError):
    """A file of the replay buffer is damaged, or was written with another tokenizer."""


class ReplayBuffer:
    """The groups in a folder.

    Args:
        tokenizer: digest of the run's tokenizer; groups of another one are refused.
    """

    def __init__(self, folder: Path, tokenizer: str) -> None:
        self._folder, self.tokenizer = folder, tokenizer

    def add(self, group: Group) -> bool:
        """Write a group; return False if the buffer has it already.

        Raises:
            BufferError: the group has another tokenizer.
            OutOfSpaceError: the disk is full.
        """
        self._check_tokenizer(group)
        path = self._path(group.number)
        if path.is_file():
            return False
        with atomic_file(path) as file:
            file.write(_to_bytes(group))
        return True

    def has(self, number: int) -> bool:
        """Return True if the buffer holds a group."""
        return self._path(number).is_file()

    def numbers(self) -> list[int]:
        """Return the numbers of all groups, ascending."""
        if not self._folder.is_dir():
            return []
        return sorted(int(match[1]) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name)))

    def read(self, number: int) -> Group:
        """Return a group.

        Raises:
            BufferError: the file is missing or damaged, or the group has another tokenizer.
        """
        path = self._path(number)
        try:
            group = _from_bytes(path.read_bytes())
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, ConversationError) as error:
            raise BufferError(f"{path} is not a readable group ({error}); remove it and repeat the command") from error
        self._check_tokenizer(group)
        return group

    def remove_before(self, number: int) -> None:
        """Remove the groups with lower numbers."""
        for old in self.numbers():
            if old < number:
                self._path(old).unlink(missing_ok=True)

    def _check_tokenizer(self, group: Group) -> None:
        if group.tokenizer != self.tokenizer:
            raise BufferError(
                f"group {group.number} was generated with another tokenizer than that of the policy; start all generators"
                " from the run's bundle"
            )

    def _path(self, number: int) -> Path:
        return self._folder / f"group-{number:011}.npz"


def _to_bytes(group: Group) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {}
    trajectories = []
    for number, each in enumerate(group.trajectories):
        arrays |= {f"{number}.{name}": array for name in _ARRAYS if (array := getattr(each, name)) is not None}
        trajectories.append(
            {
                "prompt_tokens": list(each.prompt_tokens),
                "images": [asdict(image) for image in each.images],
                "score": asdict(each.score),
                "sample": _sample_to_dict(each.sample),
            }
        )
    header = {
        "version": VERSION,
        "number": group.number,
        "tokenizer": group.tokenizer,
        "error": group.error,
        "prompt": group.trajectories[0].sample.prompt.to_dict() if group.trajectories else None,
        "trajectories": trajectories,
    }
    arrays["header"] = np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), np.uint8)
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def _from_bytes(data: bytes) -> Group:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        header = json.loads(arrays["header"].tobytes())
        if header["version"] != VERSION:
            raise ValueError(f"version {header['version']}, this openafm reads version {VERSION}")
        prompt = None if header["prompt"] is None else RLPrompt.from_dict(header["prompt"])
        trajectories = []
        for index, values in enumerate(header["trajectories"]):
            assert prompt is not None
            found = {name: arrays[f"{index}.{name}"] for name in _ARRAYS if f"{index}.{name}" in arrays}
            trajectories.append(
                Trajectory(
                    sample=_sample_from_dict(values["sample"], prompt),
                    score=Score(**values["score"]),
                    group=header["number"],
                    index=index,
                    prompt_tokens=tuple(values["prompt_tokens"]),
                    images=tuple(ImageSpan(**image) for image in values.get("images", ())),
                    **found,
                )
            )
    return Group(
        number=header["number"], trajectories=tuple(trajectories), tokenizer=header["tokenizer"], error=header["error"]
    )


def _sample_to_dict(sample: Sample) -> dict[str, Any]:
    return {
        "turns": Conversation(turns=sample.turns).to_dict()["messages"],
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "num_tokens": sample.num_tokens,
        "state": dict(sample.state),
    }


def _sample_from_dict(values: Mapping[str, Any], prompt: RLPrompt) -> Sample:
    turns = Conversation.from_dict({"messages": values["turns"]}).turns
    return Sample(
        prompt=prompt,
        turns=tuple(turn for turn in turns if isinstance(turn, AssistantTurn | ToolTurn)),
        text=values["text"],
        finish_reason=values["finish_reason"],
        num_tokens=values["num_tokens"],
        state=values["state"],
    )
