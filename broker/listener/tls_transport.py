"""TLS between a socket's transport and its protocol: ciphertext in and out, plaintext in between.

The event loops have their own TLS. Here a handshake is counted, timed and logged from the first
byte on, and uses the certificate in force when it begins. Nothing is buffered: input is decrypted
at once, output is encrypted at once, and only the socket's transport keeps unsent bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

READ_BYTES = 256 * 1024


class TlsTransport(asyncio.Transport):
    """The transport to which a protocol over TLS writes; pass `receive` the bytes of the raw
    transport.

    `ended`: the client has closed its side of TLS, and nothing that follows counts.
    """

    def __init__(self, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self._raw = raw
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open, self.ended = False, False

    def receive(self, data: bytes) -> bytes:
        """Decrypt; raises ssl.SSLError, after sending the alert that says why."""
        self._incoming.write(data)
        try:
            if not self.is_open:
                self.connection.do_handshake()
                self.is_open = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        finally:
            self._flush()

    def _read(self) -> bytes:
        chunks = []
        try:
            while chunk := self.connection.read(READ_BYTES):
                chunks.append(chunk)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(chunks)

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt and send."""
        view = memoryview(data)
        while view and not self._raw.is_closing():
            view = view[self.connection.write(view) :]
        self._flush()

    def can_write_eof(self) -> bool:
        """Whether our side can be closed alone."""
        return self._raw.can_write_eof()

    def write_eof(self) -> None:
        """Announce the end; nothing that arrives from now on counts."""
        self._say_end()
        self.ended = True
        self._raw.write_eof()

    def close(self) -> None:
        """Announce the end, and close when everything is sent."""
        if not self.ended:
            self._say_end()
        self._raw.close()

    def _say_end(self) -> None:
        if not self._raw.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the client's own notice is not waited for
                self.connection.unwrap()
            self._flush()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        self._raw.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._raw.is_closing()

    def is_reading(self) -> bool:
        """Whether the socket is read."""
        return self._raw.is_reading()

    def pause_reading(self) -> None:
        """Leave arriving bytes in the socket."""
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the protocol is told to pause."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes encrypted and not sent."""
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Of the socket."""
        return self._raw.get_extra_info(name, default)
