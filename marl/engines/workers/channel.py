"""Messages between a process and its workers over a socket. Each message is sent after 8 bytes with its length."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH_HEADER = struct.Struct("!Q")
_MAX_CHUNK_BYTES = 1 << 20


class MessageTooLongError(ValueError):
    """A message is longer than the receiver's limit."""


class ProcessMessageChannel:
    """One end of a stream of messages. No method blocks for longer than its timeout."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._message = bytearray()
        """Received beginning of the current message, including the 8 bytes of its length."""

    def send(self, message: bytes, timeout_s: float | None = None) -> None:
        """Send `message`. Wait at most `timeout_s` seconds (default: without limit).

        Raises:
            TimeoutError: if the other end does not read the message in time.
            OSError: if the other end is closed.
        """
        self._stream.settimeout(timeout_s)
        self._stream.sendall(_LENGTH_HEADER.pack(len(message)) + message)

    def receive(self, timeout_s: float | None = None, max_bytes: int | None = None) -> bytes:
        """Return the next message, of at most `max_bytes`. Wait at most `timeout_s` seconds (default: without limit).

        Raises:
            TimeoutError: if the message is not complete in time. The next call continues with the message.
            MessageTooLongError: if the message is longer than `max_bytes`. Only its length was read then.
            EOFError, OSError: if the other end is closed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._receive_bytes_until(_LENGTH_HEADER.size, deadline)
        (length,) = _LENGTH_HEADER.unpack_from(self._message)
        if max_bytes is not None and length > max_bytes:
            raise MessageTooLongError(f"a message of {length:,} bytes; at most {max_bytes:,} are read")
        self._receive_bytes_until(_LENGTH_HEADER.size + length, deadline)
        message = bytes(self._message[_LENGTH_HEADER.size :])
        self._message.clear()
        return message

    def is_open_without_unread_data(self) -> bool:
        """Return True if the other end has sent nothing and has not closed the stream."""
        self._stream.settimeout(0)
        try:
            self._stream.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close this end of the stream."""
        self._stream.close()

    def _receive_bytes_until(self, byte_count: int, deadline: float | None) -> None:
        """Read until `byte_count` bytes of the message have arrived, or until `deadline` (monotonic seconds)."""
        while len(self._message) < byte_count:
            if deadline is not None:
                # The timeout is positive even after the deadline, as 0 would make the socket non-blocking.
                self._stream.settimeout(max(deadline - time.monotonic(), 1e-6))
            chunk = self._stream.recv(min(byte_count - len(self._message), _MAX_CHUNK_BYTES))
            if not chunk:
                raise EOFError
            self._message += chunk
