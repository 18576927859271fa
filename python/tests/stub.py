"""An endpoint on the loopback interface that gives scripted answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def says(text, finish="stop", tokens=100):
    """An answer of a chat."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "stub",
            "choices": [choice], "usage": {"total_tokens": tokens}}  # fmt: skip
    return lambda handler: reply(handler, 200, json.dumps(body))


def refuses(status, text="no"):
    return lambda handler: reply(handler, status, json.dumps({"error": {"message": text}}))


def refuses_with_the_key(handler):
    """As some do: the error quotes what was sent."""
    reply(handler, 401, json.dumps({"error": {"message": handler.headers["Authorization"]}}))


def half(handler):
    """A body that ends before its length."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"mess')


def sends(body, status=200):
    return lambda handler: reply(handler, status, body)


def stalls(handler):
    handler.server.over.wait(30)


def drips(status):
    """A byte now and then, for ever."""

    def answer(handler):
        handler.send_response(status)
        handler.end_headers()
        while not handler.server.over.wait(0.1):
            handler.wfile.write(b" ")

    return answer


def reply(handler, status, body):
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body.encode())))
    handler.end_headers()
    handler.wfile.write(body.encode())


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        size = int(self.headers["Content-Length"])
        self.server.asked.append(json.loads(self.rfile.read(size)))
        number = min(len(self.server.asked), len(self.server.script)) - 1
        try:
            self.server.script[number](self)
        except (BrokenPipeError, ConnectionResetError):
            pass  # who asked has gone

    def log_message(self, *_):
        pass


class Stub:
    """`with Stub(answer, ...) as stub`: the last answer is given again and again. `asked` are the
    bodies of the requests."""

    def __init__(self, *script):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.script, self._server.asked = script, []
        self._server.over = threading.Event()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self.asked = self._server.asked

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.over.set()
        self._server.shutdown()
        self._server.server_close()
