"""Who answers: a model behind a compatible endpoint, or the transcript of an earlier run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from .._errors import Refused

Messages = list[dict[str, str]]

_MOST_BYTES = 1 << 20  # of an answer; longer ones are not read
_MOST_PAUSE = 30.0
_HOPELESS = (400, 401, 403, 404, 422)  # statuses that asking again does not change


class Reply(NamedTuple):
    """An answer of a model, or why there is none."""

    text: str = ""
    problem: str = ""  # why it is not whole
    hopeless: bool = False  # asking again changes nothing
    tokens: int = 0
    seconds: float = 0.0


class Source(Protocol):
    def answer(self, model: str, messages: Messages) -> Reply:
        """Raises Refused when nobody is there to answer the first time."""
        ...


class _Broken(Exception):
    """There is no whole answer: why, and the status with which it was refused."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.hopeless = status in _HOPELESS


class Endpoint:
    """Asks over HTTP by the `openai` client. The key goes nowhere but into its requests: in what
    comes back it is blotted out."""

    def __init__(
        self, base_url: str, key: str, *, timeout: float, max_tokens: int, pause: float
    ) -> None:
        import openai

        self._openai = openai
        self._url, self._reached = base_url, False
        self._key, self._timeout, self._max_tokens = key, timeout, max_tokens
        self._pause, self._failures = pause, 0
        self._deadline = 0.0
        hooks = {"response": [self._refuse_errors]}
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=key,
            timeout=timeout,
            max_retries=0,  # a try again is an exchange of its own
            http_client=openai.DefaultHttpxClient(event_hooks=hooks, timeout=timeout),
        )

    def answer(self, model: str, messages: Messages) -> Reply:
        if self._failures:
            time.sleep(min(_MOST_PAUSE, self._pause * 2 ** (self._failures - 1)))
        begun = time.monotonic()
        self._deadline = begun + self._timeout
        try:
            reply = self._ask(model, messages)
        except (_Broken, self._openai.APIConnectionError) as error:  # a timeout, too
            # Of the client's HTTP library, which differs by version.
            if not self._reached and type(error.__cause__).__name__ == "ConnectError":
                raise Refused("no endpoint is there", "--base-url", f"{self._url}: {error.__cause__}",
                              "the address of one that runs",
                              "http://localhost:8000/v1, once a server listens there") from None  # fmt: skip
            # Some versions of the client wrap what a hook raises.
            cause = error.__cause__ if isinstance(error.__cause__, _Broken) else error
            reply = Reply(problem=str(cause), hopeless=getattr(cause, "hopeless", False))
        except (ValueError, LookupError, TypeError) as error:
            reply = Reply(problem=f"not an answer of a chat: {type(error).__name__}")
        self._reached = True
        self._failures = self._failures + 1 if reply.problem and not reply.text else 0
        return reply._replace(
            text=self._without_key(reply.text),
            problem=self._without_key(reply.problem)[:500],
            seconds=round(time.monotonic() - begun, 3),
        )

    def _ask(self, model: str, messages: Messages) -> Reply:
        asked: Any = {"model": model, "messages": messages, "max_tokens": self._max_tokens}
        with self._client.chat.completions.with_streaming_response.create(**asked) as response:
            found = json.loads(self._read(response.iter_bytes()))
        choice = found["choices"][0]
        text = choice["message"]["content"]
        if not isinstance(text, str):
            raise TypeError(text)
        # JSON may hold halves of characters, which no file takes.
        text = text.encode("utf-8", "replace").decode()
        cut = choice.get("finish_reason") == "length"
        usage = (found.get("usage") or {}).get("total_tokens")
        return Reply(
            text,
            f"the answer was cut after {self._max_tokens} tokens" if cut else "",
            tokens=usage if isinstance(usage, int) and usage > 0 else len(text) // 4 + 1,
        )

    def _read(self, chunks: Iterable[bytes]) -> bytes:
        """All of them. The client's own limit is one between two chunks."""
        read = bytearray()
        try:
            for chunk in chunks:
                read += chunk
                if len(read) > _MOST_BYTES:
                    raise _Broken(f"the answer is longer than {_MOST_BYTES:,} bytes")
                if time.monotonic() > self._deadline:
                    raise _Broken(f"no whole answer in {self._timeout:g} seconds")
        except _Broken:
            raise
        except Exception as error:  # of the client's HTTP library, which differs by version
            raise _Broken(f"the answer broke off: {type(error).__name__}") from error
        return bytes(read)

    def _refuse_errors(self, response: Any) -> None:
        """Before the client reads a refusal, which may be without end."""
        if response.is_error:
            body = self._read(response.iter_bytes()).decode(errors="replace")
            raise _Broken(f"HTTP {response.status_code}: {body}", response.status_code)

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]")


class Recording:
    """Gives the answers of a transcript again, to the same questions only."""

    def __init__(self, path: str, lines: list[dict[str, Any]]) -> None:
        self._path, self._next = path, 0
        self._lines = [
            (line["model"], line["messages"], Reply(*(line[name] for name in Reply._fields)))
            for line in lines
        ]

    def answer(self, model: str, messages: Messages) -> Reply:
        if self._next == len(self._lines):
            raise Refused("it has no more answers", "--replay", self._path,
                          "the transcript of a whole run of this version")  # fmt: skip
        asked, said, reply = self._lines[self._next]
        self._next += 1
        if (asked, said) != (model, messages):
            raise Refused(f"exchange {self._next} asks something else", "--replay", self._path,
                          "a transcript of this version")  # fmt: skip
        return reply
