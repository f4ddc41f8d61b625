"""The page: claims with commands, the diagram of stages, curves, samples, pictures; foreign and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.core.executors import LocalConfig
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus
from openafm.data.drawing.generators import generator_config
from openafm.recipes.reproduction.claims.catalog import CLAIMS, measured_claims
from openafm.recipes.reproduction.claims.claim import MeasuredClaim
from openafm.recipes.reproduction.page.page import summary, watt_hours, write_pages
from openafm.recipes.reproduction.results import StageResult, StageState
from openafm.recipes.reproduction.stages.stage import Command, Stage

ASK = Command(name="ask", words=("respond", "What <b>is</b> it?", "--json"))
STAGES = (
    Stage(name="first", section="1", title="a", commands=(ASK,)),
    Stage(name="second", section="2", title="b", commands=(), needs=("first",)),
)
RESULTS = [
    StageResult(
        name="first",
        digest="0123456789abcdef",
        state=StageState.DONE,
        figures={"ask": {"content": "It is " + "x" * 400}},
        seconds=3.0,
        cpu_seconds=7.2,
        notes=("some pages are missing: needs Chromium",),
        command_seconds={"ask": 2.5},
    ),
    StageResult(name="second", digest="f" * 16, state=StageState.FAILED, figures={}, reason="disk full"),
    StageResult(name="of another version", digest="", state=StageState.DONE, figures={}),
]
CLAIM = MeasuredClaim(
    section="1", text="a <claim>", reported="3", ours="4", holds=False, scale="micro models", command="openafm respond"
)


def test_the_page_shows_stages_curves_and_samples_in_one_file(tmp_path: Path) -> None:
    run = tmp_path / "first" / "on_device.sft"
    run.mkdir(parents=True)
    lines = [json.dumps({"step": step, "loss": 4.0 / step}) for step in (1, 2, 4)]
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 5, "lo']))
    html, markdown = write_pages(tmp_path, "micro", STAGES, RESULTS, [CLAIM])
    page = html.read_text()
    assert "a &lt;claim&gt;" in page
    assert "openafm respond   " not in page
    assert "What &lt;b&gt;is&lt;/b&gt; it?" in page
    assert "x" * 301 not in page.partition('id="time"')[0]  # samples are short, figures are whole
    assert "on_device.sft: loss 4 to 1 in 4 steps" in page
    assert page.count("<path d=") == 1
    assert "01234567</text>" in page
    assert "some pages are missing: needs Chromium" in page
    assert "failed: disk full" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "| a <claim> | 3 | 4 | micro models | no |" in markdown.read_text()


def test_energy_follows_from_cpu_time() -> None:
    assert watt_hours(RESULTS[0]) == 7.2 * 10 / 3600
    assert summary("micro", RESULTS, [CLAIM]).endswith(
        "1 of 1 claims measured, 0 hold in shape; 0 minutes, 0.0 Wh (estimate)."
    )


@pytest.mark.long
def test_pictures_are_in_the_file_and_a_damaged_corpus_is_reported(tmp_path: Path) -> None:
    config = DrawingConfig(generators=(generator_config("signs"),), languages=("en",), count=1)
    draw_corpus(config, tmp_path / "images" / "drawn", LocalConfig(num_workers=1))
    damaged = tmp_path / "pairs" / "pairs"
    damaged.mkdir(parents=True)
    page = write_pages(tmp_path, "micro", STAGES, RESULTS, [])[0].read_text()
    assert page.count("data:image/jpeg;base64,") == 1
    assert "The images of pairs/pairs cannot be shown" in page


def test_a_model_without_skill_retains_nothing() -> None:
    """Scores of zero before and after are no retention, and a judge that follows the order is no judge."""
    table = next(claim for claim in CLAIMS if claim.command == "compare")
    judge = next(claim for claim in CLAIMS if claim.command == "judge")
    row = {"task": "event", "language": "all", "difference": {"mean": 0.0, "is_significant": False}}
    for score, holds in ((0.0, False), (0.8, True)):
        figures = {"evaluation": {"compare": {"rows": [row | {"a": {"mean": score}, "b": {"mean": score}}]}}}
        assert table.measured(figures)[1] is holds
    replies = {"replies": 4, "nonsense": 0}
    assert [judge.measured({"grading": {"judge": replies | {"consistent": share}}})[1] for share in (None, 0.0, 0.9)] == [
        False,
        False,
        True,
    ]


def test_a_training_shows_its_held_out_loss() -> None:
    """Few drawings are memorized: the loss of training falls, that of new ones does not."""
    claim = next(claim for claim in CLAIMS if claim.command == "vision.clip")
    run = {"loss_first": 3.8, "loss_last": 1.71, "steps": 100, "held_out_loss": 5.546}
    assert claim.measured({"vision": {"vision.clip": run}}) == ("loss 3.80 to 1.71 in 100 steps; held-out 5.55", True)
    assert claim.measured({"vision": {"vision.clip": run | {"held_out_loss": None}}})[0] == "loss 3.80 to 1.71 in 100 steps"


def test_distillation_is_compared_by_the_loss_of_the_data() -> None:
    """A loss of distillation has the divergence from the teacher too, so it is larger at equal skill."""
    claim = next(claim for claim in CLAIMS if claim.command == "on_device.distill")
    dense = {"loss_last": 0.185}
    for entropy, holds in ((0.150, True), (0.190, False)):
        distilled = {"loss_last": 0.213, "cross_entropy_last": entropy}
        figures = {"distillation": {"on_device.distill": distilled}, "pretraining": {"on_device.pretrain": dense}}
        assert claim.measured(figures) == (
            f"training loss 0.185, distilled {entropy:.3f} (cross entropy of the data)",
            holds,
        )


def test_updates_are_compared_with_the_idle_time_of_the_generators() -> None:
    claim = next(claim for claim in CLAIMS if claim.command == "asynchronous_report")

    def report(seconds: float, idle: float) -> dict[str, object]:
        parts = {"updater": {"idle_share": 0.9}, "generator-1": {"idle_share": idle}, "generator-2": {"idle_share": idle}}
        return {"seconds_per_update": seconds, "parts": parts}

    figures = {"rlhf": {"asynchronous_report": report(1.0, 0.05), "synchronous_report": report(2.0, 0.5)}}
    shown, holds = claim.measured(figures)
    assert holds
    assert "generators idle 5% of the time; synchronous 2.00 s, idle 50% (-50%)" in shown


def test_a_change_of_the_reward_within_the_noise_is_named() -> None:
    claim = next(claim for claim in CLAIMS if "raises the reward" in claim.text)

    def measured(rewards: list[float]) -> tuple[str, bool]:
        return claim.measured({"rlhf": {"report": {"curves": {"reward": rewards}}}})

    shown, holds = measured([0.1, 0.5, 0.3] + [0.3] * 6 + [0.2, 0.5, 0.25])
    assert shown == "mean reward 0.300 to 0.317, the difference ± 0.148, which is within the noise"
    assert not holds
    assert measured([0.30, 0.31, 0.29] + [0.3] * 6 + [0.50, 0.51, 0.49]) == (
        "mean reward 0.300 to 0.500, the difference ± 0.008",
        True,
    )
    assert measured([0.3, 0.4]) == ("mean reward 0.300 to 0.400", True)


def test_dropped_captions_have_their_reasons() -> None:
    claim = next(claim for claim in CLAIMS if claim.command == "captions")
    figures = {"captions": {"captions": {"captions": {"short": 0}, "dropped": {"short.endless": 4, "keywords.format": 2}}}}
    assert claim.measured(figures) == ("none; dropped: 4 short.endless, 2 keywords.format", False)


def test_claims_are_in_the_order_of_the_report() -> None:
    sections = [claim.section for claim in measured_claims([], STAGES, "micro")]
    assert len(sections) == len(CLAIMS)
    assert sections.index("3.2.3") < sections.index("4.1") < sections.index("4.3")
    assert [section.split(".")[0] for section in sections] == sorted(section.split(".")[0] for section in sections)
