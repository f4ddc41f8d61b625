"""Prompts with images: what the policy samples, what the vision encoder learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forked_processes import together
from PIL import Image
from tiny_bundles import write_multimodal_bundle, write_tiny_bundle
from tiny_policies import tiny_policy_run

from openafm.bundle import open_bundle
from openafm.models.attention.spans import ImageKey
from openafm.models.vision.image_modes import AspectTilesModeConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.rl.buffer import ReplayBuffer
from openafm.rl.config import RLConfig
from openafm.rl.images import PromptImages
from openafm.rl.prompt_sources import PromptFileConfig
from openafm.rl.run import train_policy
from openafm.runtime.engines.base import InsertedEmbeddingsError
from openafm.runtime.engines.image_cache import UnreadableImageError
from openafm.tokenizer.conversation import ConversationError, ImagePart, UserTurn
from openafm.tokenizer.template import ImageSpan
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.run import load_trained


def image_run(folder: Path, num_tokens: int = 4) -> RLConfig:
    """Return a run whose prompts each show another image."""
    if not (folder / "bundle").is_dir():
        write_multimodal_bundle(folder / "bundle")
    lines = []
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        image = {"type": "image", "file": f"{number}.png", "num_tokens": num_tokens}
        content = [{"type": "text", "text": "the cat "}, image]
        lines.append({"messages": [{"role": "user", "content": content}], "kind": "picture", "truth": {}})
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tiny_policy_run(folder, num_steps=2)


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_vision_encoder_is_trained_on_sampled_answers(tmp_path: Path) -> None:
    config = image_run(tmp_path)
    train_policy(config, tmp_path / "run")
    lines = log(tmp_path / "run")
    assert lines[-1]["trained"] == 16
    assert max(line["log_ratio"] for line in lines) < 1e-4  # the trainer sees the images that the generators saw
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-3)  # so does the reference
    bundle = open_bundle(tmp_path / "bundle")
    trained, start = load_trained(tmp_path / "run").state_dict(), bundle.tensors()
    for prefix in ("vision.", "adapter."):
        changed = [name for name in trained if name.startswith(prefix) and not np.array_equal(trained[name], start[name])]
        assert changed, prefix
    group = ReplayBuffer(tmp_path / "run" / "buffer", bundle.tokenizer.digest).read(0)
    (image,) = group.trajectories[0].images
    assert image.stop - image.start == 4
    with pytest.raises(ConversationError, match=r"line 1 of .*is not a prompt"):
        (tmp_path / "0.png").unlink()
        PromptFileConfig(path=str(tmp_path / "prompts.jsonl")).build()


def test_images_have_the_modes_of_the_model_stated_or_not(tmp_path: Path) -> None:
    image_run(tmp_path)
    source = PromptFileConfig(path=str(tmp_path / "prompts.jsonl"), shuffle=False).build()
    (prompt,) = source.prompt(0).conversation.turns
    assert isinstance(prompt, UserTurn)
    digest = next(part.digest for part in prompt.content if isinstance(part, ImagePart))
    model = open_bundle(tmp_path / "bundle").config
    assert isinstance(model, MultimodalConfig)
    tiles = AspectTilesModeConfig(name="high", side=16, tokens=4, most_tiles=6)
    for modes, num_views in (((), 1), ((tiles,), 5)):
        images = PromptImages(source, replace(model, modes=modes))
        images.check([ImageSpan(start=0, stop=4 * num_views, digest=digest)])
        assert images.views(ImageKey(digest, 4 * num_views)).shape == (num_views, 16, 16, 3)
    Image.new("RGB", (64, 64)).save(tmp_path / "0.png")
    with pytest.raises(UnreadableImageError, match="changed during the run"):
        PromptImages(source, model).views(ImageKey(digest, 4))
    (tmp_path / "0.png").unlink()
    with pytest.raises(UnreadableImageError, match="is missing"):
        PromptImages(source, model).views(ImageKey(digest, 4))


@pytest.mark.slow
def test_two_updaters_equal_one_with_images(tmp_path: Path) -> None:
    config = image_run(tmp_path)
    config = replace(config, trainer=replace(config.trainer, optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0)))
    train_policy(config, tmp_path / "one")
    together(2, lambda processes: train_policy(config, tmp_path / "two", processes=processes))
    one, two = (load_trained(tmp_path / name).state_dict() for name in ("one", "two"))
    for name, expected in one.items():
        is_same = (two[name] - expected).abs() < 2e-6
        # The gradient of a key's bias is rounding, which Adam scales to whole updates; a layer's biases are one vector.
        keys = slice(16, 32) if expected.shape == (3 * 16,) else slice(0, 0)
        is_same[keys] = True
        assert is_same.all(), name


def test_images_that_the_model_cannot_take_are_dropped_or_errors(tmp_path: Path) -> None:
    config = image_run(tmp_path, num_tokens=5)
    train_policy(config, tmp_path / "run")
    assert log(tmp_path / "run")[-1]["dropped"] == 16
    assert "resolution modes take 1, 4, 20" in str(log(tmp_path / "run")[-1]["errors"])
    write_tiny_bundle(tmp_path / "text")
    model = open_bundle(tmp_path / "text").config
    text = replace(config, trainer=replace(config.trainer, from_bundle=str(tmp_path / "text"), model=model))
    with pytest.raises(InsertedEmbeddingsError, match="start from a multimodal bundle"):
        train_policy(text, tmp_path / "text run")
