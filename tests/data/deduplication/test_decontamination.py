from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from shard_runs import Run, document, kept_ids, write_signatures

from openafm.core.config import ConfigError
from openafm.data.deduplication import DecontaminationConfig
from openafm.data.deduplication.evaluation_sets import EvaluationSetError, texts_of
from openafm.data.web.documents import Dropped

QUESTION = "A farmer has sixteen ducks, and each of them lays three eggs on every day of the week; how many are sold?"
CHINESE = "珍妮特的鸭子每天下十六颗蛋她每天早上早餐时吃三颗每天用四颗为自己的朋友做松饼"
SHORT = "How can I kill a Python process quickly today?"


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    folder = tmp_path / "sets" / "math"
    folder.mkdir(parents=True)
    (folder / "test.jsonl.gz").write_bytes(gzip.compress((json.dumps({"turns": [[{"content": QUESTION}]]}) + "\n").encode()))
    (folder / "zh.tsv").write_text(f"{CHINESE}\t18\n", encoding="utf-8")
    (folder / "prompts.csv").write_text(f'id,prompt\n1,"{SHORT}"\n2,too short\n', encoding="utf-8")
    (folder / "notes.md").write_text("not a set", encoding="utf-8")
    return folder


def test_documents_that_share_ngrams_are_dropped_with_the_set_and_the_ngram(run: Run, sets: Path) -> None:
    words = QUESTION.split()
    shards = [
        [
            document("whole", f"An answer key.\n\n**{QUESTION.upper()}**"),
            document("thirteen", "He said: " + " ".join(words[4:17]) + " and so on"),
            document("twelve", "He said: " + " ".join(words[4:16]) + " and so on"),
        ],
        [
            document("chinese", f"问题：{CHINESE[3:30]}。其他文字在这里。"),
            document("other chinese", f"问题：{CHINESE[3:20]}。其他文字在这里。"),
            document("short", f"People ask: {SHORT} It is a fair question."),
            document("part", "How can I kill a Python process"),
            document("empty", ""),
        ],
    ]
    config = DecontaminationConfig(evaluation=(str(sets.parent),))
    outcomes = run(config, shards)
    assert kept_ids(outcomes) == ["twelve", "other chinese", "part", "empty"]
    assert outcomes[0][1] == Dropped(
        reason="contaminated",
        detail="math/test.jsonl.gz: 1 n-grams, 'ducks and each of them lays three eggs on every day of the'",
        url="https://a.example/thirteen",
    )
    assert "math/zh.tsv: 2 n-grams, " in str(outcomes[1][0])
    assert "math/prompts.csv: 1 n-grams, 'how can i kill a python process quickly today'" in str(outcomes[1][2])
    assert kept_ids(run(DecontaminationConfig(evaluation=(str(sets / "zh.tsv"),)), shards[:1])) == [
        "whole",
        "thirteen",
        "twelve",
    ]


def test_the_decisions_list_what_was_removed(sets: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    method = DecontaminationConfig(evaluation=(str(sets),)).build()
    paths = write_signatures(method, [[document("a", "nothing")], [document("b", f"{QUESTION} {SHORT}")]], tmp_path / "run")
    method.decide(paths, tmp_path / "out.parquet")
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(row["shard"], row["id"], row["set"], row["num_ngrams"]) for row in rows] == [
        (1, "b", "math/prompts.csv", 1),
        (1, "b", "math/test.jsonl.gz", 10),
    ]


def test_a_changed_set_changes_the_key_and_the_result(run: Run, sets: Path) -> None:
    config = DecontaminationConfig(evaluation=(str(sets / "zh.tsv"),))
    before = config.input_digests()
    shards = [[document("a", QUESTION)]]
    assert kept_ids(run(config, shards)) == ["a"]
    (sets / "zh.tsv").write_text(QUESTION, encoding="utf-8")
    assert config.input_digests() != before
    assert kept_ids(run(config, shards)) == []


def test_sets_that_cannot_be_read_are_reported(sets: Path, tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none.jsonl", "does not exist"), (sets / "notes.md", "another format")):
        with pytest.raises(EvaluationSetError, match=message):
            DecontaminationConfig(evaluation=(str(path),)).build()
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvaluationSetError, match="no file of"):
        DecontaminationConfig(evaluation=(str(tmp_path / "empty"),)).build()
    bad = {
        "cut.jsonl.gz": gzip.compress(b'{"a": 1}\n' * 99)[:30],
        "not.json": b'{"a": ',
        "latin.txt": "é".encode("latin-1"),
        "deep.json": b"[" * 5000 + b"]" * 5000,
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(EvaluationSetError, match=name):
            list(texts_of(tmp_path / name))
    with pytest.raises(ConfigError, match="evaluation is empty"):
        DecontaminationConfig(evaluation=())


def test_one_file_of_json_and_lines_of_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps({"a": ["x", {"b": "y"}]}, indent=1), encoding="utf-8")
    (tmp_path / "lines.json").write_text('{"a": "x"}\n\n{"a": "y"}\n', encoding="utf-8")
    assert list(texts_of(tmp_path / "one.json")) == list(texts_of(tmp_path / "lines.json")) == ["x", "y"]
