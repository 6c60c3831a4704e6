"""Exits with 0 if the server in this container takes requests: asks /ready on its own port."""

import http.client
import os
import ssl
import sys

port = int(os.environ.get("ROCMFORGE_PORT", "8000"))
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=4)
if os.environ.get("ROCMFORGE_TLS_CERTIFICATE"):
    # The certificate names the host that clients use, and this is not it.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=4, context=context)
connection.request("GET", "/ready")
sys.exit(0 if connection.getresponse().status == 200 else 1)
