"""Reading text files of data folders, whose contents are unchecked."""

import gzip
import zlib

from examples.errors import UsageError


def read(path, largest):
    """The text of a UTF-8 file, which may be gzipped, of at most `largest` bytes when unpacked.

    Raises:
        UsageError: it is not such a file. A pipe or a device, which could be read for ever, is not
            opened.
    """
    try:
        # Of what a link leads to. Whether it is there at all, reading tells.
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be read: it is no regular file.")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise UsageError(f"{path} cannot be read: it holds more than {largest:,} bytes.")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} in line {line}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is damaged or no gzip file: {error}.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
