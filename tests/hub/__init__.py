"""A small Hub on loopback, a real process of its own, that huggingface_hub itself talks to.

It speaks the Hub's API for model repositories: metadata, tree, refs, commits; `resolve` with ranges, where large files
are redirected to a "CDN" under another host name and a signed path that needs no token; repository creation, LFS
upload, commits. Not there: Xet, pull requests, datasets and spaces, and whether the YAML of a card is valid.

    with HubServer() as hub:
        commit = hub.publish("owner/name", folder)
        run([sys.executable, "-m", "ckpt", "verify", "hf://owner/name"], env={**os.environ, **hub.env()})
        assert sum(request.bytes_sent for request in hub.counts) < 100_000

How a test reaches it:

- The fixture `hub`, and a child process with `{**os.environ, **hub.env()}`: huggingface_hub reads `HF_ENDPOINT`,
  `HF_HOME` and the like when it is imported, and the tests' own process has `HF_HUB_OFFLINE=1` from conftest.
  `hub.env(token=None)` leaves the token out, `hub.env(HF_HUB_DOWNLOAD_TIMEOUT="1")` adds to it. The process serves
  the whole session, but each test begins with an empty Hub and an empty cache.
- The fixture `online`: the same server, with the client in this process made to use it, which saves the import.
  Then `HfApi()`, `hf_hub_download(...)`, `HfFileSystem()` need no arguments; token and cache are the fixture's own.

What to know:

- `hub.publish` again moves the branch; the old commit stays readable. Files are served from where they stand, so a
  sparse checkpoint of 70 GB costs nothing (`hash_shards=False`: nothing large is read). They may be deleted or replaced
  by another file; written to in place they are answered by 500, since the commit's bytes are lost.
- `hub.token` may write, `hub.read_token` is the same person's and may not, to `hub.stranger_token` private
  repositories do not exist and gated ones are closed. Every namespace but "stranger" may be written to.
- `hub.fault(regex, ...)` matches "METHOD /path?query". A large file is asked for at `/owner/name/resolve/REV/FILE`, by
  `HEAD`, or by `GET` for a range of it, and is then fetched from the CDN's `/blobs/owner/name/SHA256/FILE?...`; it is
  sent by `PUT` to the CDN's `/uploads/owner/name/SHA256?...`.
- The client waits 1, 2, 4, 8 seconds between its tries: one 503 costs a second, five cost half a minute.
  `headers={"Retry-After": "0"}` makes that 1 second each.
- `hub.counts` has bytes of bodies, headers not counted; `hub.leaks` must be empty: what went to the CDN with a token.

The process ends when its stdin closes or its parent is gone, whatever ended that, and leaves no file behind.
"""

from .process import Fault, HubServer, Logged, Request

__all__ = ["Fault", "HubServer", "Logged", "Request"]
