"""Messages between a process and its workers over a socket: 8 bytes with the length, then the message."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


class MessageTooLongError(ValueError):
    """An announced message is longer than the receiver's limit."""


class Channel:
    """One end of a stream of messages. With a timeout, no method blocks for longer, whatever the other end does."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._message = bytearray()
        """Received beginning of the current message, length included."""

    def send(self, message: bytes, timeout_s: float | None = None) -> None:
        """Send a message.

        Raises:
            TimeoutError: if the other end does not read the message in time.
            OSError: if the other end is closed.
        """
        self._stream.settimeout(timeout_s)
        self._stream.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, timeout_s: float | None = None, limit: int | None = None) -> bytes:
        """Return a complete message of at most `limit` bytes; wait at most `timeout_s` seconds.

        Raises:
            TimeoutError: if the message is incomplete in time; the next call continues with it.
            MessageTooLongError: if the message is longer than `limit`; nothing but the length was read.
            EOFError, OSError: if the other end is closed.
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
        """Return True if nothing can be read, not even the end of the stream."""
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
                # Positive even after the deadline: a timeout of 0 would make the socket non-blocking.
                self._stream.settimeout(max(deadline - time.monotonic(), 1e-6))
            chunk = self._stream.recv(min(length - len(self._message), _CHUNK))
            if not chunk:
                raise EOFError
            self._message += chunk
