import ctypes
import json

import client
import jsonschema
import pytest

from openafm.apple_sdk import binding as lib
from openafm.apple_sdk.handles import HANDLES
from openafm.framework.errors import GenerationErrorCode
from openafm.framework.schema.content import GeneratedContent

pytestmark = pytest.mark.usefixtures("stand_in", "no_leaks")


def built(handle):
    return json.loads(lib.FMGenerationSchemaGetJSONString(handle))


def refused(handle):
    errors = client.Errors()
    assert lib.FMGenerationSchemaGetJSONString(handle, *errors.outputs) is None
    return errors.taken()


def chosen(name, type_name, *texts, wrapped=False):
    handle = client.prop(name, type_name)
    buffers = [ctypes.create_string_buffer(text.encode()) for text in texts]
    pointer = ctypes.POINTER(ctypes.c_char)
    array = (pointer * len(texts))(*[ctypes.cast(buffer, pointer) for buffer in buffers])
    lib.FMGenerationSchemaPropertyAddAnyOfGuide(handle, array, len(texts), wrapped)
    return handle


def guided(name, type_name, add, *arguments):
    handle = client.prop(name, type_name)
    add(handle, *arguments)
    return handle


def test_schemas_have_apples_format():
    age = guided("age", "integer", lib.FMGenerationSchemaPropertyAddRangeGuide, 1.0, 9.0, False)
    assert built(client.schema("Cat", client.prop("name", "string", description="what it hears to"), age)) == {
        "title": "Cat",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "what it hears to"},
            "age": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
        "x-order": ["name", "age"],
    }


def test_references_to_others_and_to_itself():
    cat = client.schema("Cat", client.prop("name", "string"))
    home = client.schema(
        "Home",
        client.prop("cats", "array<Cat>"),
        client.prop("favorite", "Cat", optional=True),
        client.prop("annexes", "array<Home>"),
        references=(cat,),
    )
    schema = built(home)
    assert schema["properties"]["cats"] == {"type": "array", "items": {"$ref": "#/$defs/Cat"}}
    assert schema["properties"]["annexes"]["items"] == {"$ref": "#"}
    assert schema["required"] == ["cats", "annexes"]
    assert list(schema["$defs"]) == ["Cat"]


@pytest.mark.parametrize(
    ("type_name", "expected", "is_required"),
    [
        ("str | None", {"type": "string"}, False),
        ("list[int] | None", {"type": "array", "items": {"type": "integer"}}, False),
        ("array<array<number>>", {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, True),
        ("zoo.<locals>.Cat | None", {"$ref": "#/$defs/Cat"}, False),
    ],
)
def test_python_type_names(type_name, expected, is_required):
    schema = built(
        client.schema("Home", client.prop("it", type_name), references=(client.schema("Cat", client.prop("a", "string")),))
    )
    assert schema["properties"]["it"] == expected
    assert ("it" in schema["required"]) is is_required


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: chosen("it", "string", "a", "b"), {"type": "string", "enum": ["a", "b"]}),
        (lambda: chosen("it", "array<string>", "a"), {"type": "array", "items": {"type": "string", "enum": ["a"]}}),
        (
            lambda: guided("it", "array<string>", lib.FMGenerationSchemaPropertyAddCountGuide, 3, False),
            {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
        ),
        (
            lambda: guided("it", "array<integer>", lib.FMGenerationSchemaPropertyAddMaximumGuide, 5.0, True),
            {"type": "array", "items": {"type": "integer", "maximum": 5}},
        ),
        (
            lambda: guided("it", "array<Cat>", lib.FMGenerationSchemaPropertyAddMinItemsGuide, 2, False),
            {"type": "array", "items": {"$ref": "#/$defs/Cat"}, "minItems": 2},
        ),
        (
            lambda: guided("it", "array<Cat>", lib.FMGenerationSchemaPropertyAddMaxItemsGuide, 2),
            {"type": "array", "items": {"$ref": "#/$defs/Cat"}, "maxItems": 2},
        ),
        (
            lambda: guided("it", "number", lib.FMGenerationSchemaPropertyAddMinimumGuide, 0.5),
            {"type": "number", "minimum": 0.5},
        ),
        (
            lambda: guided("it", "string", lib.FMGenerationSchemaPropertyAddRegex, b"[a-z]+"),
            {"type": "string", "pattern": "[a-z]+"},
        ),
    ],
)
def test_guides_restrict_values(make, expected):
    cat = client.schema("Cat", client.prop("a", "string"))
    schema = built(client.schema("Home", make(), references=(cat,)))
    assert schema["properties"]["it"].items() >= {k: v for k, v in expected.items() if k != "pattern"}.items()
    assert ("pattern" in schema["properties"]["it"]) is ("pattern" in expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: guided("it", "string", lib.FMGenerationSchemaPropertyAddMinimumGuide, 1.0, False),
        lambda: guided("it", "string", lib.FMGenerationSchemaPropertyAddCountGuide, 1, False),
        lambda: guided("it", "integer", lib.FMGenerationSchemaPropertyAddRegex, b"a", False),
        lambda: chosen("it", "number", "1"),
        lambda: guided("it", "array<string>", lib.FMGenerationSchemaPropertyAddRegex, b"a", False),
        lambda: guided("it", "array<Cat>", lib.FMGenerationSchemaPropertyAddMaximumGuide, 1.0, False),
        lambda: guided("it", "Cat", lib.FMGenerationSchemaPropertyAddMaximumGuide, 1.0, False),
        lambda: guided("it", "array<string>", lib.FMGenerationSchemaPropertyAddCountGuide, 0, False),
    ],
)
def test_a_guide_of_another_type_is_refused_before_the_first_token(make):
    cat = client.schema("Cat", client.prop("a", "string"))
    handle = client.schema("Home", make(), references=(cat,))
    assert refused(handle)[0] == GenerationErrorCode.INVALID_SCHEMA
    outcome, words, asked = client.Outcome(), client.prompt("Go"), client.session()
    task = lib.FMLanguageModelSessionRespondWithSchema(asked, words, handle, None, None, outcome)
    status, content, _ = outcome.wait()
    assert status == GenerationErrorCode.UNSUPPORTED_GUIDE
    assert "'it'" in json.loads(lib.FMGeneratedContentGetJSONString(content))
    lib.FMRelease(content)
    lib.FMRelease(task)


@pytest.mark.parametrize("type_name", ["Dog", "array<Dog>", "date", "dict"])
def test_an_unknown_type_is_an_invalid_schema(type_name):
    code, description = refused(client.schema("Home", client.prop("it", type_name)))
    assert code == GenerationErrorCode.INVALID_SCHEMA
    assert "Dog" in description or type_name in description


@pytest.mark.parametrize("as_json", [False, True])
def test_a_guided_response_fits_its_schema(as_json):
    cat = client.schema("Cat", client.prop("name", "string"))
    home = client.schema("Home", client.prop("cats", "array<Cat>"), client.prop("age", "integer"), references=(cat,))
    schema = built(home)
    outcome, words, asked = client.Outcome(), client.prompt("Go"), client.session()
    if as_json:
        text = json.dumps(schema).encode()
        task = lib.FMLanguageModelSessionRespondWithSchemaFromJSON(asked, words, text, None, None, outcome)
    else:
        task = lib.FMLanguageModelSessionRespondWithSchema(asked, words, home, None, None, outcome)
    status, content, _ = outcome.wait()
    assert status == 0
    jsonschema.validate(json.loads(lib.FMGeneratedContentGetJSONString(content)), schema)
    assert HANDLES.get(content, GeneratedContent).is_complete
    lib.FMRelease(content)
    lib.FMRelease(task)


@pytest.mark.parametrize("text", [b"[1]", b"words", b'"an object in a string"'])
def test_an_invalid_json_schema_is_explained(text):
    outcome, words, asked = client.Outcome(), client.prompt("Go"), client.session()
    task = lib.FMLanguageModelSessionRespondWithSchemaFromJSON(asked, words, text, None, None, outcome)
    status, content, _ = outcome.wait()
    assert status == GenerationErrorCode.UNKNOWN_ERROR
    assert "format" in lib.FMGeneratedContentGetJSONString(content)
    lib.FMRelease(content)
    lib.FMRelease(task)
