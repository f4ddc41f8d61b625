"""Other names of tools."""

from __future__ import annotations

import random

from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.tasks.tool_names import draw_name
from openafm.data.synthetic.text_files.catalogs import catalog_of
from openafm.tokenizer.conversation import Instructions, ToolDefinition

NAMES = ["set_timer", "cancel_timer", "get_weather", "turn_on_light", "calculator", "find_phone", "play_music", "send_email"]


def _tools(split: Split, count: int) -> list[tuple[ToolDefinition, ...]]:
    config = SyntheticConfig(split=split, tasks={"tool": 1.0}, languages={"en": 1.0})
    instructions = [conversation.turns[0] for conversation in generate(config, count)]
    return [turn.tools for turn in instructions if isinstance(turn, Instructions)]


def test_a_tool_has_many_names_and_most_often_its_own() -> None:
    rng = random.Random(0)
    drawn = [draw_name(rng, "get_weather", NAMES) for _ in range(300)]
    assert {"get_weather", "weather", "weather_get", "show_weather"} <= set(drawn)
    assert max(set(drawn), key=drawn.count) == "get_weather"
    assert {draw_name(rng, "turn_on_light", NAMES) for _ in range(100)} == {
        "turn_on_light", "switch_on_light", "light_on", "lights_on"
    }  # fmt: skip
    for name in ("calculator", "order_status", "check_in", "add_to_list", "turn_off_tv"):
        assert {draw_name(rng, name, [*NAMES, name]) for _ in range(50)} == {name}


def test_the_noun_alone_names_no_tool_beside_another_of_that_noun() -> None:
    rng = random.Random(0)
    assert "timer" in {draw_name(rng, "check_timer", ["check_timer", "get_weather"]) for _ in range(200)}
    assert "timer" not in {draw_name(rng, "check_timer", ["check_timer", "cancel_timer"]) for _ in range(200)}


def test_names_of_one_set_differ_and_the_held_out_split_keeps_its_own() -> None:
    for tools in _tools("train", 300):
        assert len({tool.name.lower() for tool in tools}) == len(tools)
    known = {tool.name.replace("_", "") for tool in catalog_of("en", "held_out").tools}
    held_out = {tool.name.lower().replace("_", "").replace("-", "") for tools in _tools("held_out", 300) for tool in tools}
    assert held_out
    assert held_out <= known


def test_names_that_were_drawn_before_are_taken() -> None:
    rng = random.Random(0)
    assert {draw_name(rng, "search_video", ["find_video", "search_video"]) for _ in range(200)} == {
        "search_video", "look_up_video", "query_video", "video_search"
    }  # fmt: skip
