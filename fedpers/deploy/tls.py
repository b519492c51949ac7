"""What is wrong with a server's certificate, in words: Flower says "unavailable" whatever it is."""

import socket
import ssl
from pathlib import Path

REMEDIES = (  # of OpenSSL's words; the first that fits
    ("has expired", "it has expired: on the server, fedpers keys renew, and start SuperLink and proxy anew"),
    ("not yet valid", "it is not valid yet: is this machine's clock right?"),
    ("mismatch", "it is not for this host: on the server, fedpers keys renew --host {host}"),
    ("not valid for", "it is not for this host: on the server, fedpers keys renew --host {host}"),
    ("self-signed", "another authority signed it: is {ca} the ca.crt of that server?"),
    ("unable to get", "another authority signed it: is {ca} the ca.crt of that server?"),
    ("signature failure", "another authority signed it: is {ca} the ca.crt of that server?"),
)


def problem(address: str, ca: str | Path, patience_s: float = 5.0) -> str | None:
    """Why no TLS connection to HOST:PORT comes about that `ca` vouches for; None if one does."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(ca))
        with socket.create_connection((host, int(port)), patience_s) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        text = error.verify_message
        known = (remedy for words, remedy in REMEDIES if words in text.lower())
        why = next(known, text).format(host=host, ca=ca)
        return f"the certificate of {address} is refused: {why}"
    except ssl.SSLError as error:
        return f"{address} does not speak TLS, or {ca} is no certificate ({error.reason or error})"
    except (OSError, ValueError) as error:
        return f"{address} cannot be reached: {error}"
    return None
