"""Retrieval bootstrap: exact search, seeds, similar images, prompts of a teacher."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_samples import color_at, corpus_of, image_of, interleaved_of, pair_of

from openafm.data.captions.bootstrap import BootstrapConfig, Seed, SeedsError, bootstrap, read_seeds, retrieved
from openafm.data.captions.captioner import FunctionCaptioner, ImageRequest
from openafm.data.captions.retrieval import ColorLayoutConfig, embeddings, nearest
from openafm.data.images.shards import ImageCorpus, open_image_corpus


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 12), st.integers(1, 9), st.integers(0, 10_000))
def test_search_in_blocks_equals_a_full_sort(rows: int, queries: int, k: int, block: int, seed: int) -> None:
    values = np.random.default_rng(seed)
    rows_ND = values.integers(-2, 3, (rows, 3)).astype(np.float32)  # many ties
    queries_QD = values.integers(-2, 3, (queries, 3)).astype(np.float32)
    indices, similar = nearest(queries_QD, rows_ND, k, block)
    products = queries_QD @ rows_ND.T
    expected = np.argsort(-products, axis=1, kind="stable")[:, :k]
    assert (indices == expected).all()
    assert (similar == np.take_along_axis(products, expected, axis=1)).all()


def teach(request: ImageRequest) -> str:
    color = color_at(request.image, 20, 20)
    if "is not in it" in request.prompt:
        return json.dumps({"questions": [{"question": "Where is the dog?", "answer": "There is no dog in this image."}]})
    return json.dumps({"questions": [{"question": f"Name the {color} thing.", "answer": f"A {color} rectangle"}]})


TEACHER = FunctionCaptioner(model="teacher-1", function=teach)


def samples(tmp_path: Path) -> ImageCorpus:
    near = [pair_of("red", background=level) for level in (250, 245, 240)]
    far = [pair_of("blue", "green", background=level) for level in (0, 40)]
    copy = (replace(near[0][0], id="copy"), near[0][1])
    return corpus_of(tmp_path / "in", [*near, pair_of("red"), copy], [*far, interleaved_of(*far)])


def seed_of(*colors: str) -> Seed:
    return Seed(image=image_of(*colors), prompt="What shape is the red thing?", answer="A rectangle")


def test_similar_images_get_prompts_and_answers(tmp_path: Path) -> None:
    corpus = samples(tmp_path)
    bootstrap(corpus, [seed_of("red")], tmp_path / "out", TEACHER, BootstrapConfig(max_similarity=2.0))
    out = open_image_corpus(tmp_path / "out")
    documents = list(out.documents())
    assert [document.kind for document in documents] == ["bootstrap"] * 3
    assert out.manifest.dropped == {"duplicate": 1, "not_retrieved": 3, "several_images": 1}
    assert documents[0].questions[0].question == "Name the red thing."
    assert documents[0].questions[0].kind == "bootstrap"
    assert documents[0].metadata["bootstrap.seed"] == "0"
    assert documents[0].metadata["bootstrap.embedder"] == "ColorLayoutConfig"
    similarities = [float(document.metadata["bootstrap.similarity"]) for document in documents]
    assert similarities == sorted(similarities, reverse=True)
    assert min(similarities) > 0.6


def test_each_image_goes_to_its_most_similar_seed_and_each_seed_finds_a_few(tmp_path: Path) -> None:
    corpus = samples(tmp_path)
    dark = Seed(image=image_of("blue", "green", background=20), prompt="What is dark?")
    config = BootstrapConfig(per_seed=2, max_similarity=0.999999)
    found = retrieved(corpus, [seed_of("red"), dark], config, tmp_path)
    by_seed = {seed: [digest for digest, (index, _) in found.items() if index == seed] for seed in (0, 1)}
    assert by_seed[0] == [pair_of("red", background=level)[1][0].digest for level in (250, 245)]
    assert set(by_seed[1]) <= {pair_of("blue", "green", background=level)[1][0].digest for level in (0, 40)}
    assert by_seed[1]


def test_the_teacher_is_asked_about_what_is_absent(tmp_path: Path) -> None:
    config = BootstrapConfig(asks_absent=True, max_similarity=0.999999)
    bootstrap(samples(tmp_path), [seed_of("red")], tmp_path / "out", TEACHER, config)
    first = next(iter(open_image_corpus(tmp_path / "out").documents()))
    assert [(each.kind, each.answer) for each in first.questions] == [
        ("bootstrap", "A red rectangle"),
        ("absent", "There is no dog in this image."),
    ]


def test_the_prompt_shows_the_seed_and_bad_answers_are_counted(tmp_path: Path) -> None:
    prompts = []

    def note(request: ImageRequest) -> str:
        prompts.append(request.prompt)
        return "no idea"

    config = BootstrapConfig(max_similarity=0.999999, language="French")
    manifest = bootstrap(
        samples(tmp_path), [seed_of("red")], tmp_path / "out", FunctionCaptioner(model="m", function=note), config
    )
    assert manifest.dropped["format"] == 3
    assert "Request: What shape is the red thing?\nAnswer: A rectangle\n" in prompts[0]
    assert "in French" in prompts[0]


def test_runs_are_equal_and_embeddings_are_stored(tmp_path: Path) -> None:
    corpus = samples(tmp_path)
    config = BootstrapConfig(max_similarity=0.999999)
    for threads in (1, 3):
        bootstrap(corpus, [seed_of("red")], tmp_path / f"out{threads}", TEACHER, config, num_threads=threads)
    files = [
        {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (tmp_path / f"out{threads}").glob("[0-9em]*")}
        for threads in (1, 3)
    ]
    assert files[0] == files[1]
    (stored,) = (tmp_path / "out1").glob("embeddings-*.npy")
    digests, rows = embeddings(corpus, ColorLayoutConfig(), tmp_path / "out1")
    assert (np.load(stored) == rows).all()
    assert len(digests) == 6
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    bootstrap(corpus, [seed_of("red")], tmp_path / "out1", TEACHER, config)


def test_seeds_are_read_and_checked(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image_of("red").data)
    (tmp_path / "b.png").write_bytes(b"no image")
    file = tmp_path / "seeds.jsonl"

    def write(*lines: object) -> Path:
        file.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines))
        return file

    (seed,) = read_seeds(write({"image": "a.png", "prompt": "What?"}, ""))
    assert (seed.prompt, seed.answer, seed.image.digest) == ("What?", "", image_of("red").digest)
    good = {"image": "a.png", "prompt": "What?"}
    for line, message in [
        ("{", "line 2: JSONDecodeError"),
        ({"image": "none.png", "prompt": "x"}, "line 2: FileNotFoundError"),
        ({"prompt": "x"}, "line 2: KeyError"),
        ({"image": "b.png", "prompt": "x"}, "line 2: b.png: not_an_image"),
        ({"image": "a.png", "prompt": " "}, "'prompt' must be text"),
        ([1], "line 2: TypeError"),
    ]:
        with pytest.raises(SeedsError, match=message):
            read_seeds(write(good, line))
    with pytest.raises(SeedsError, match="has no seeds"):
        read_seeds(write(""))
