"""`openafm chat`: a conversation with a model in the terminal."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from openafm.cli.options import PluginsOption
from openafm.cli.output import styled
from openafm.cli.respond import (
    MAX_TOKENS,
    AdapterOption,
    DraftOption,
    ImageDetailOption,
    InstructionsOption,
    ModelOption,
    SchemaOption,
    SeedOption,
    TemperatureOption,
    TokensOption,
    TopKOption,
    TopPOption,
    default_instructions,
    generation_options,
    purpose_note,
    read_schema,
    undecodable,
    with_images,
)
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.terminal import escaped

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.framework.session.session import LanguageModelSession
    from openafm.framework.transcripts.prompt import PromptLike

HISTORY_LINES = 1000
HELP = """\
/help            print this help
/model NAME      continue the conversation with another bundle
/image FILE      attach an image to the next prompt
/schema FILE     answer as JSON that satisfies a schema; /schema off for text
/save FILE       save the conversation
/load FILE       continue a saved conversation
/undo            remove the last prompt and its answer
/clear           start a new conversation
/exit            end the chat; so does Ctrl-D

Ctrl-C stops an answer. A line that ends with \\ continues on the next one;
\"\"\" starts and ends a block of lines."""


def chat(
    model: ModelOption = None,
    adapter: AdapterOption = None,
    draft: DraftOption = None,
    instructions: InstructionsOption = None,
    schema: SchemaOption = None,
    image_detail: ImageDetailOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    max_tokens: TokensOption = None,
    plugins: PluginsOption = None,
) -> None:
    """Chat with a model turn by turn. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the chat."""
    from openafm.framework.backends.system_model import SystemLanguageModel

    limit = MAX_TOKENS if max_tokens is None else max_tokens
    options = generation_options(temperature, seed, limit, image_detail, top_k=top_k, top_p=top_p)
    described = SystemLanguageModel(bundle=model, adapter=adapter, draft=draft)
    described.load()  # raises for a missing model before the first prompt
    text = default_instructions() if instructions is None else instructions
    loop = ChatLoop(described, text, options, read_schema(schema))
    loop.run()


class ChatLoop:
    """Reads prompts and commands from standard input, prints answers, and keeps the session between them."""

    def __init__(self, model: SystemLanguageModel, instructions: str, options: Any, schema: dict[str, Any] | None) -> None:
        from openafm.framework.session.session import LanguageModelSession

        self._model, self._instructions, self._options, self._schema = model, instructions, options, schema
        self._session = LanguageModelSession(instructions, model)
        self._images: list[Path] = []  # for the next prompt
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/model": self._use_model,
            "/image": self._attach,
            "/schema": self._use_schema,
            "/save": self._save,
            "/load": self._load,
            "/undo": self._undo,
            "/clear": self._clear,
        }

    def run(self) -> None:
        """Read and answer until the input ends or /exit."""
        interactive = sys.stdin.isatty()
        if interactive:
            _note(f"{styled(escaped(self._model.name), 'bold')} · /help for commands, Ctrl-D to exit")
            if self._schema is None and (note := purpose_note(self._model)) is not None:
                _note(note)
        with _line_editing(interactive):
            while (line := _read_prompt(interactive)) is not None:
                if line.strip() in ("/exit", "/quit", "/bye"):
                    return
                try:
                    self._handle(line)
                except OpenAFMError as error:  # the session is unchanged
                    _note(f"openafm: {escaped(' '.join(str(error).split()))}")
                except OSError as error:
                    _note(f"openafm: {escaped(f'{error.filename}: {error.strerror}' if error.filename else str(error))}")

    def _handle(self, line: str) -> None:
        name, _, argument = line.strip().partition(" ")
        if not line.strip():
            return
        if name in self._commands:
            self._commands[name](argument.strip())
        elif name.startswith("/") and name[1:].isalpha():
            raise UsageError(f"unknown command {name}; /help lists the commands")
        else:
            self._answer(line)

    def _answer(self, prompt: str) -> None:
        """Print the answer as it is generated. Ctrl-C stops it and leaves the conversation as before the prompt."""
        from openafm.framework.errors import GenerationCancelledError

        shown = ""
        paths, self._images = self._images, []
        with _on_interrupt(self._session.cancel):
            try:
                for text in self._snapshots(with_images(prompt, paths)):
                    if text.startswith(shown):
                        print(escaped(text[len(shown) :]), end="", flush=True)
                        shown = text
                print()
            except GenerationCancelledError:
                print()
                _note("stopped; the prompt is not part of the conversation")
        if not shown.strip():
            _note("the model gave an empty answer")

    def _snapshots(self, prompt: PromptLike) -> Iterator[str]:
        """Yield the text so far; with a schema, the finished JSON."""
        if self._schema is None:
            for snapshot in self._session.stream_blocking(prompt, options=self._options):
                yield snapshot.content
        else:
            content = self._session.respond_blocking(prompt, json_schema=self._schema, options=self._options)
            yield json.dumps(json.loads(content.to_json()), ensure_ascii=False, indent=2)

    def _help(self, argument: str) -> None:
        _note(HELP)

    def _use_model(self, name: str) -> None:
        from openafm.framework.backends.system_model import SystemLanguageModel

        if not name:
            _note(f"the model is {escaped(self._model.name)}; /model NAME changes it")
            return
        model = SystemLanguageModel(bundle=name)
        model.load()
        self._session, self._model = self._continued(self._session.transcript, model), model
        _note(f"the conversation continues with {escaped(model.name)}")

    def _attach(self, file: str) -> None:
        self._images.append(_path(file, "/image"))
        try:
            with_images("", self._images[-1:])
        except OpenAFMError:
            self._images.pop()
            raise
        _note(f"the next prompt has {len(self._images)} {'image' if len(self._images) == 1 else 'images'}")

    def _use_schema(self, file: str) -> None:
        self._schema = None if file in ("", "off") else read_schema(Path(file).expanduser())
        _note("answers are text" if self._schema is None else f"answers satisfy {escaped(file)}")

    def _save(self, file: str) -> None:
        path = _path(file, "/save")
        self._session.save_blocking(path)
        _note(f"saved to {escaped(str(path))}")

    def _load(self, file: str) -> None:
        from openafm.framework.session.session import LanguageModelSession

        path = _path(file, "/load")
        if not path.is_file():
            raise UsageError(f"{path} is not a file; /load reads a conversation that /save wrote")
        self._session = LanguageModelSession.load(path, self._model)
        num_prompts = sum(entry.__class__.__name__ == "PromptEntry" for entry in self._session.transcript)
        _note(f"loaded a conversation with {num_prompts} {'prompt' if num_prompts == 1 else 'prompts'}")

    def _undo(self, argument: str) -> None:
        from openafm.framework.transcripts.transcript import PromptEntry, Transcript

        entries = list(self._session.transcript)
        prompts = [index for index, entry in enumerate(entries) if isinstance(entry, PromptEntry)]
        if not prompts:
            raise UsageError("there is no prompt to undo")
        self._session = self._continued(Transcript(entries[: prompts[-1]]), self._model)
        _note("removed the last prompt and its answer")

    def _clear(self, argument: str) -> None:
        from openafm.framework.session.session import LanguageModelSession

        self._session = LanguageModelSession(self._instructions, self._model)
        _note("started a new conversation")

    def _continued(self, transcript: Any, model: SystemLanguageModel) -> LanguageModelSession:
        from openafm.framework.session.session import LanguageModelSession

        return LanguageModelSession.from_transcript(transcript, model)


def _path(file: str, command: str) -> Path:
    if not file:
        raise UsageError(f"{command} needs a file: {command} FILE")
    return Path(file).expanduser()


def _note(text: str) -> None:
    """Print a line that is not part of an answer."""
    print(styled(text, "dim", stream=sys.stderr), file=sys.stderr, flush=True)


def _read_prompt(interactive: bool) -> str | None:
    """Return the next prompt, None at the end of the input. Ctrl-C discards the current line."""
    while True:
        try:
            line = input("> " if interactive else "")
            if line.strip().startswith('"""'):
                return _block(line.strip()[3:], interactive)
            while line.endswith("\\"):
                line = line[:-1] + "\n" + input("... " if interactive else "")
            return line
        except EOFError:
            if interactive:
                print()
            return None
        except KeyboardInterrupt:
            if not interactive:
                raise
            print()
        except UnicodeDecodeError as error:
            if not interactive:
                raise UsageError(f"standard input: {undecodable(error)}") from error
            _note(f"openafm: the line was not read: {undecodable(error)}")


def _block(first: str, interactive: bool) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith('"""'):
        lines.append(input("... " if interactive else ""))
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n")


@contextlib.contextmanager
def _on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Call `action` on Ctrl-C instead of raising KeyboardInterrupt."""

    def handle(number: int, frame: FrameType | None) -> None:
        action()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _line_editing(interactive: bool) -> Iterator[None]:
    """Enable line editing with a history that is kept between chats, in a file that only this user can read."""
    if not interactive:
        yield
        return
    try:
        import readline
    except ImportError:  # not part of Python on every platform
        yield
        return
    from openafm.core.files import data_home

    file = data_home() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)
            file.chmod(0o600)
