"""Knowledge domains: key words, scorers, questions of a teacher; every document is counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from image_samples import color_at, corpus_of, interleaved_of, pair_of

from openafm.core.config import ConfigError, from_dict, override, to_dict
from openafm.data.captions.captioner import FunctionCaptioner, ImageRequest
from openafm.data.captions.domains import DOMAINS, DomainConfig, DomainsConfig, Scorer, ScorerConfig, collect_domains
from openafm.data.captions.questions import questions_check
from openafm.data.images.documents import StoredImage
from openafm.data.images.shards import open_image_corpus

TWO = (
    DomainConfig(name="birds", keywords=("bird", "swift", "鳥"), prompts=("a photo of a bird",)),
    DomainConfig(name="boats", keywords=("boat", "sailing ship"), prompts=("a photo of a boat",)),
)


def asked(*pairs: tuple[str, str]) -> str:
    return json.dumps({"questions": [{"question": question, "answer": answer} for question, answer in pairs]})


def teach(request: ImageRequest) -> str:
    color = color_at(request.image, 20, 20)
    return asked((f"Which color has the {color} thing?", color), ("How many things are there?", "1"))


TEACHER = FunctionCaptioner(model="teacher-1", function=teach, sampling="greedy")


@dataclass(frozen=True, kw_only=True)
class ColorScorerConfig(ScorerConfig):
    """Knows that birds are red and boats are blue."""

    def build(self) -> Scorer:
        return ColorScorer()


class ColorScorer(Scorer):
    def scores(self, image: StoredImage, prompts: Sequence[str]) -> Sequence[float]:
        best = {"red": "a photo of a bird", "blue": "a photo of a boat"}.get(color_at(image.data, 20, 20), "a logo")
        return [0.3 if prompt == best else 0.1 for prompt in prompts]


def test_images_are_found_by_key_words_and_get_questions(tmp_path: Path) -> None:
    items = [
        pair_of("red", alt="A Swift in flight"),
        pair_of("blue", alt="Two sailing ships, one bird, no boat: a sailing ship"),
        pair_of("green", alt="Birdsong and boating"),
        pair_of("yellow", alt="白い鳥です"),
        pair_of("red", "blue"),
        interleaved_of(pair_of("blue", "red"), pair_of("green", "red")),
        pair_of("green", "blue", alt="a bird", opt_out="noai"),
    ]
    corpus = corpus_of(tmp_path / "in", items)
    collect_domains(corpus, tmp_path / "out", TEACHER, DomainsConfig(domains=TWO))
    out = open_image_corpus(tmp_path / "out")
    assert [(each.kind, each.metadata["domain.keywords"]) for each in out.documents()] == [
        ("domain.birds", "swift"),
        ("domain.boats", "boat, sailing ship"),
        ("domain.birds", "鳥"),
    ]
    assert out.manifest.dropped == {"no_keyword": 2, "opt_out": 1, "several_images": 1}
    first = next(iter(out.documents()))
    assert [(each.question, each.answer, each.kind) for each in first.questions] == [
        ("Which color has the red thing?", "red", "domain.birds"),
        ("How many things are there?", "1", "domain.birds"),
    ]
    assert {key: first.metadata[key] for key in ("teacher.model", "teacher.sampling", "domain.scorer")} == {
        "teacher.model": "teacher-1",
        "teacher.sampling": "greedy",
        "domain.scorer": "none",
    }


def test_a_scorer_refines_what_key_words_found(tmp_path: Path) -> None:
    items = [pair_of(color, alt="a bird") for color in ("red", "blue", "green")]
    corpus = corpus_of(tmp_path / "in", items)
    config = DomainsConfig(domains=TWO, scorer=ColorScorerConfig())
    collect_domains(corpus, tmp_path / "out", TEACHER, config)
    out = open_image_corpus(tmp_path / "out")
    assert out.manifest.dropped == {"other_category": 2}
    assert [drop.detail for drop in out.dropped(0)] == [
        "birds by key words; best prompt 'a photo of a boat', score 0.300",
        "birds by key words; best prompt 'a logo', score 0.300",
    ]
    (kept,) = out.documents()
    assert (kept.metadata["domain.score"], kept.metadata["domain.scorer"]) == ("0.3000", "ColorScorerConfig")
    strict = override(config, {"min_score": "0.5"})
    assert collect_domains(corpus, tmp_path / "strict", TEACHER, strict).dropped == {"low_score": 1, "other_category": 2}
    chosen = override(DomainsConfig(), {"scorer": '{"type": "ColorScorerConfig"}'})
    assert chosen.scorer == ColorScorerConfig()
    assert from_dict(DomainsConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "format"),
        ("What is this? A bird.", "format"),
        ("[1, 2]", "format"),
        ('{"questions": [{"question": "What?"}]}', "format"),
        (asked(), "empty"),
        (asked(("What is this?", "")), "empty"),
        (asked(("What is this?", "I'm sorry, I cannot tell.")), "refused"),
        (asked(("What is this?", "bird " * 30)), "repetitive"),
        (asked(("", "a bird")), "empty"),
        (json.dumps({"questions": [{"question": 1, "answer": None}]}), "format"),
    ],
)
def test_unusable_answers_of_the_teacher_are_counted(answer: str, reason: str, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "in", [pair_of("red", alt="a bird")])
    teacher = FunctionCaptioner(model="m", function=lambda request: answer)
    assert collect_domains(corpus, tmp_path / "out", teacher, DomainsConfig(domains=TWO)).dropped == {reason: 1}


def test_valid_questions_are_kept_beside_invalid_ones() -> None:
    check = questions_check("a prompt", 2)
    outcome = check(
        "```json\n" + asked(("What?", "A bird"), ("what?", "Again"), ("How many?", "2"), ("More?", "3")) + "\n```"
    )
    assert json.loads(outcome.text) == [["What?", "A bird"], ["How many?", "2"]]  # type: ignore[union-attr]


def test_the_prompt_names_topic_text_and_count(tmp_path: Path) -> None:
    prompts = []

    def note(request: ImageRequest) -> str:
        prompts.append(request.prompt)
        assert request.schema is not None
        return asked(("What is it?", "A bird"))

    corpus = corpus_of(tmp_path / "in", [pair_of("red", alt="a bird called {count} {topic}")])
    config = DomainsConfig(domains=TWO, count=7, language="German")
    collect_domains(corpus, tmp_path / "out", FunctionCaptioner(model="m", function=note), config)
    assert "topic birds. Its page says: a bird called {count} {topic}\nWrite 7 questions" in prompts[0]
    assert "in German" in prompts[0]


def test_configs_are_checked() -> None:
    with pytest.raises(ConfigError, match="matches every text"):
        DomainConfig(name="x", keywords=("a", " "), prompts=("p",))
    with pytest.raises(ConfigError, match="different names"):
        DomainsConfig(domains=(TWO[0], TWO[0]))
    assert len({domain.name for domain in DOMAINS}) == 8
