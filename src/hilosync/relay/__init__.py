"""A caching HTTP relay: serves a log's objects to many while it is still receiving them, and only what it has verified.

It is the middle of a tree: its upstream is a log of objects (a folder, a bucket) or another relay.
"""

from hilosync.relay.cache import Cache
from hilosync.relay.server import serve
from hilosync.relay.transfer import Transfer
from hilosync.relay.upstream import Download, Upstream, open_upstream
from hilosync.relay.verification import Verifier

__all__ = ["Cache", "Download", "Transfer", "Upstream", "Verifier", "open_upstream", "serve"]
