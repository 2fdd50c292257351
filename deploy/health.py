"""Ends with 0 if a SuperLink or SuperNode answers: python health.py URL [CERTIFICATE].

CERTIFICATE is the authority's, where the address begins with https.
"""

import ssl
import sys
import urllib.error
import urllib.request

SECONDS = 5.0
"""How long an answer is waited for."""


def main() -> None:
    """Ask, and say what is wrong."""
    url, *authority = sys.argv[1:]
    trust = ssl.create_default_context(cafile=authority[0]) if authority else None
    try:
        urllib.request.urlopen(url, timeout=SECONDS, context=trust).close()  # noqa: S310 - the operator's
    except (urllib.error.URLError, OSError) as error:
        sys.exit(f"{url}: {error}")


if __name__ == "__main__":
    main()
