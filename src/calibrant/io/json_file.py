"""For imports of earlier versions."""

from calibrant.io.files import read_json as read_json
from calibrant.io.files import write_json as write_json
