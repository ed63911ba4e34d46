"""Messages between a process and its workers: a length, then so many bytes, over a socket."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


class MessageTooLongError(ValueError):
    """A message is announced that is longer than the receiver wants to hold in memory."""


class Channel:
    """One end of a stream of messages. Nothing blocks for longer than it may, whatever the other end does."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._message = bytearray()
        """Beginning of the message that is being received, length included."""

    def send(self, message: bytes, timeout_s: float | None = None) -> None:
        """Send a message.

        Raises:
            TimeoutError: if the other end does not take it in time.
            OSError: if there is no other end.
        """
        self._stream.settimeout(timeout_s)
        self._stream.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, timeout_s: float | None = None, limit: int | None = None) -> bytes:
        """Return a whole message of up to `limit` bytes, which has arrived within `timeout_s`.

        Raises:
            TimeoutError: if it has not; the next call waits for the rest of it.
            MessageTooLongError: if it is longer; nothing of it has been read.
            EOFError, OSError: if there is no other end any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._fill(_LENGTH.size, deadline)
        (length,) = _LENGTH.unpack_from(self._message)
        if limit is not None and length > limit:
            raise MessageTooLongError(f"a message of {length:,} bytes; at most {limit:,} are read")
        self._fill(_LENGTH.size + length, deadline)
        message = bytes(self._message[_LENGTH.size :])
        self._message.clear()
        return message

    def is_quiet(self) -> bool:
        """Return True if there is nothing to read, not even the end of the stream."""
        self._stream.settimeout(0)
        try:
            self._stream.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close this end."""
        self._stream.close()

    def _fill(self, length: int, deadline: float | None) -> None:
        """Read until `length` bytes of the message are there."""
        while len(self._message) < length:
            if deadline is not None:
                self._stream.settimeout(max(deadline - time.monotonic(), 1e-6))
            chunk = self._stream.recv(min(length - len(self._message), _CHUNK))
            if not chunk:
                raise EOFError
            self._message += chunk
