"""`import openafm` is cheap, complete and typed."""

from __future__ import annotations

import ast
import datetime
import subprocess
import sys
from pathlib import Path

import pytest

import openafm as fm

HEAVY = ("torch", "tokenizers", "llguidance", "pydantic", "numpy", "PIL", "transformers")


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, openafm; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert run_python(code) == "[]"


def test_types_and_schemas_need_nothing_heavy() -> None:
    code = f"""
import sys, openafm as fm
@fm.generable
class A:
    n: int = fm.guide(minimum=1)
assert fm.GeneratedContent.from_json('{{"n":2}}').value(A) == A(n=2)
fm.GenerationSchema(A).to_dict(), fm.GenerationOptions(temperature=1)
print([name for name in {HEAVY!r} if name in sys.modules])"""
    assert run_python(code) == "[]"


def test_sessions_need_no_torch() -> None:
    code = "import sys, openafm as fm; fm.LanguageModelSession('Be brief.'); print('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_every_public_name_exists_and_is_typed() -> None:
    tree = ast.parse(Path(fm.__file__).read_text())
    typed = {
        alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname
    }
    assert typed - {"tools"} == set(fm.__all__) == set(dir(fm))  # tools is a module
    for name in fm.__all__:
        assert name in ("PromptLike", "PromptComponent") or getattr(fm, name).__name__ == name  # a union has no name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fm.nothing  # noqa: B018


def test_modules_of_schemas_and_tools_import_each_other_without_cycles() -> None:
    """Count every import statement, also inside functions and for type checking."""
    folder = Path(fm.__file__).parent / "framework"
    imports = {
        ".".join(["openafm.framework", *path.relative_to(folder).with_suffix("").parts]): {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
        }
        for path in [*folder.glob("schema/**/*.py"), *folder.glob("tools/*.py"), *folder.glob("*.py")]
    }
    while leaves := {name for name, imported in imports.items() if not imported & (imports.keys() - {name})}:
        imports = {name: imported for name, imported in imports.items() if name not in leaves}
    assert not imports


def test_turns_and_the_reference_week_are_public() -> None:
    turn = fm.AssistantTurn(tool_calls=(fm.ToolCall(name="look_up", arguments={}),))
    assert fm.Answer(turn=turn, usage=fm.Usage()).turn.tool_calls[0].name == "look_up"
    assert "Today is" in fm.reference_week(datetime.date(2026, 3, 4))
