"""For imports of earlier versions."""

from calibrant.io.files import atomic_writer as atomic_writer
