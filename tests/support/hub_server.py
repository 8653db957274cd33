"""A Hub on the loopback device, in memory: enough of its HTTP interface to create, push, tag and pull repositories.

It proves that requests and their order are right; it does not prove YAML validity, quotas or Xet.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import constants
from transformers.utils import hub as transformers_hub

LFS_SUFFIXES = (".safetensors", ".pt", ".bin", ".gz")
TOKEN = "hf_loopback_secret"
REPO = r"(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
PLAIN = r"(?:(?P<prefix>datasets)/)?(?P<id>[^/]+/[^/]+)"


@dataclass
class Repository:
    """Commits as whole file trees; refs name them."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        parent = self.refs.get(ref, "")
        sha = hashlib.sha1(f"{parent}{ref}{len(self.commits)}".encode()).hexdigest()
        self.commits[sha] = files
        self.refs[ref] = sha
        return sha

    def resolve(self, revision: str) -> str:
        for table in (self.refs, self.tags):
            if revision in table:
                return table[revision]
        if revision in self.commits:
            return revision
        raise Refusal(404, "RevisionNotFound")


class Refusal(Exception):
    """An HTTP error, with the code that the client's error classes hang on."""

    def __init__(self, status: int, code: str = "", body: object = None) -> None:
        super().__init__(status, code)
        self.status, self.code, self.body = status, code, body


@dataclass
class Fault:
    """The next `times` requests whose path contains `part` fail with `status`, or are cut after `keep` bytes."""

    part: str
    times: int = 1
    status: int = 0
    keep: int = -1
    method: str = ""


@dataclass
class Hub:
    """State of the double; `log` has (method, path, status) of every answered request."""

    url: str = ""
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    log: list[tuple[str, str, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    before_commit: Callable[[Repository], None] | None = None
    authorizations: set[str | None] = field(default_factory=set)

    def repository(self, match: dict[str, str | None]) -> Repository:
        kind = match.get("kind") or ("datasets" if match.get("prefix") else "models")
        found = self.repositories.get((kind, unquote(match["id"] or "")))
        if found is None:
            raise Refusal(404, "RepoNotFound")
        return found

    def add(self, name: str, files: dict[str, bytes], kind: str = "models", **facts: bool) -> Repository:
        """A repository that is already there."""
        made = self.repositories[(kind, name)] = Repository(**facts)
        made.commit(files)
        return made

    def count(self, method: str, part: str) -> int:
        """Answered requests of a method whose path contains `part`."""
        return sum(1 for seen, path, _ in self.log if seen == method and part in path)

    def create(self, match: dict[str, Any], body: Any) -> Any:
        name = f"{body.get('organization') or 'tester'}/{body['name']}"
        kind = f"{body.get('type') or 'model'}s"
        made = {"url": f"{self.url}/{'datasets/' if kind == 'datasets' else ''}{name}", "id": name}
        if (kind, name) in self.repositories:
            raise Refusal(409, body=made)
        self.add(
            name,
            {".gitattributes": b"*.safetensors filter=lfs\n"},
            kind,
            private="private" in (body.get("visibility"), body.get("private") and "private"),
        )
        return made

    def delete(self, match: dict[str, Any], body: Any) -> Any:
        kind = f"{body.get('type') or 'model'}s"
        del self.repositories[(kind, f"{body.get('organization') or 'tester'}/{body['name']}")]
        return {}

    def preupload(self, match: dict[str, Any], body: Any) -> Any:
        self.repository(match)
        modes = {True: "lfs", False: "regular"}
        return {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": modes[file["path"].endswith(LFS_SUFFIXES)],
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in body["files"]
            ]
        }

    def lfs_batch(self, match: dict[str, Any], body: Any) -> Any:
        objects = []
        for wanted in body["objects"]:
            actions = {"upload": {"href": f"{self.url}/lfs/{wanted['oid']}", "header": {}}}
            known = {} if wanted["oid"] in self.blobs else {"actions": actions}
            objects.append({"oid": wanted["oid"], "size": wanted["size"], **known})
        return {"transfer": "basic", "objects": objects}

    def store(self, match: dict[str, Any], body: bytes) -> Any:
        if hashlib.sha256(body).hexdigest() != match["oid"]:
            raise Refusal(422)
        self.blobs[match["oid"]] = body
        return {}

    def commit(self, match: dict[str, Any], body: bytes) -> Any:
        repository = self.repository(match)
        if self.before_commit is not None:
            self.before_commit(repository)
        lines = [json.loads(line) for line in body.splitlines() if line]
        header = next(line["value"] for line in lines if line["key"] == "header")
        head = repository.resolve(unquote(match["revision"]))
        if header.get("parentCommit") not in (None, head):
            raise Refusal(412)
        files = dict(repository.commits[head])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        number = sum(name.startswith("refs/pr/") for name in repository.refs) + 1
        wants_pr = "create_pr" in match["query"]
        ref = f"refs/pr/{number}" if wants_pr else unquote(match["revision"])
        sha = repository.commit(files, ref)
        page = f"{self.url}/{match['id']}"
        pull = f"{page}/discussions/{number}" if wants_pr else None
        return {"success": True, "commitOid": sha, "commitUrl": f"{page}/commit/{sha}", "pullRequestUrl": pull}

    def tag(self, match: dict[str, Any], body: Any) -> Any:
        repository = self.repository(match)
        if body["tag"] in repository.tags:
            raise Refusal(409)
        repository.tags[body["tag"]] = repository.resolve(unquote(match["revision"]))
        return {}

    def branch(self, match: dict[str, Any], body: Any) -> Any:
        repository = self.repository(match)
        repository.refs[unquote(match["branch"])] = repository.resolve(body.get("startingPoint", "main"))
        return {}

    def settings(self, match: dict[str, Any], body: Any) -> Any:
        self.repository(match).gated = bool(body.get("gated"))
        return {}

    def refs(self, match: dict[str, Any], body: Any) -> Any:
        repository = self.repository(match)
        branches = {name: sha for name, sha in repository.refs.items() if not name.startswith("refs/")}
        return {
            "branches": [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": s} for n, s in branches.items()],
            "tags": [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": s} for n, s in repository.tags.items()],
            "converts": [],
        }

    def info(self, match: dict[str, Any], body: Any) -> Any:
        repository = self.repository(match)
        sha = repository.resolve(unquote(match.get("revision") or "main"))
        siblings = [{"rfilename": name} for name in repository.commits[sha]]
        known = {"id": match["id"], "sha": sha, "siblings": siblings, "private": repository.private, "tags": []}
        return {**known, "gated": "auto" if repository.gated else False, "modelId": match["id"], "downloads": 0}

    def tree(self, match: dict[str, Any], body: Any) -> Any:
        repository = self.repository(match)
        files = repository.commits[repository.resolve(unquote(match["revision"]))]
        return [entry_of(name, content) for name, content in files.items()]

    def whoami(self, match: dict[str, Any], body: Any) -> Any:
        return {"type": "user", "id": "1", "name": "tester", "fullname": "Tester", "orgs": [], "auth": {"type": "x"}}

    def valid(self, match: dict[str, Any], body: Any) -> Any:
        return {"errors": [], "warnings": []}

    def file(self, match: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        """Content and headers of a file to download."""
        repository = self.repository(match)
        sha = repository.resolve(unquote(match["revision"]))
        if repository.gated:
            raise Refusal(403, "GatedRepo")
        content = repository.commits[sha].get(unquote(match["file"]))
        if content is None:
            raise Refusal(404, "EntryNotFound")
        described = entry_of(match["file"], content)
        etag = described.get("lfs", described)["oid"]
        return content, {"X-Repo-Commit": sha, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}


def entry_of(name: str, content: bytes) -> dict[str, Any]:
    """A file as the tree route lists it."""
    git_id = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    listed: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_id}
    if name.endswith(LFS_SUFFIXES):
        listed["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return listed


ROUTES = [
    ("POST", r"/api/repos/create", "create"),
    ("DELETE", r"/api/repos/delete", "delete"),
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/validate-yaml", "valid"),
    ("POST", rf"/api/{REPO}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"/{PLAIN}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", r"/lfs/(?P<oid>\w+)", "store"),
    ("POST", rf"/api/{REPO}/commit/(?P<revision>[^/]+)", "commit"),
    ("POST", rf"/api/{REPO}/tag/(?P<revision>[^/]+)", "tag"),
    ("POST", rf"/api/{REPO}/branch/(?P<branch>[^/]+)", "branch"),
    ("PUT", rf"/api/{REPO}/settings", "settings"),
    ("GET", rf"/api/{REPO}/refs", "refs"),
    ("GET", rf"/api/{REPO}(?:/revision/(?P<revision>[^/]+))?", "info"),
    ("GET", rf"/api/{REPO}/tree/(?P<revision>[^/]+)(?:/.*)?", "tree"),
]
DOWNLOAD = re.compile(rf"/{PLAIN}/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


class Handler(BaseHTTPRequestHandler):
    """One request; HTTP/1.0, so that every connection ends with its answer."""

    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.hub.authorizations.add(self.headers.get("Authorization"))
        path = urlsplit(self.path).path
        fault = self.next_fault(path)
        try:
            if fault is not None and fault.status:
                raise Refusal(fault.status)
            content, headers = self.answer(path, body)
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code} if refusal.code else {}
            self.reply(refusal.status, json.dumps(refusal.body or {}).encode(), headers)
            return
        self.reply(200, content, headers, keep=fault.keep if fault else -1)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def next_fault(self, path: str) -> Fault | None:
        for fault in self.hub.faults:
            if fault.part in path and fault.times > 0 and fault.method in ("", self.command):
                fault.times -= 1
                return fault
        return None

    def answer(self, path: str, body: bytes) -> tuple[bytes, dict[str, str]]:
        found = DOWNLOAD.fullmatch(path)
        if found:
            return self.hub.file(found.groupdict())
        for method, pattern, name in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                query = parse_qs(urlsplit(self.path).query)
                raw = name in ("store", "commit")
                sent = body if raw else json.loads(body or b"null")
                result = getattr(self.hub, name)({**match.groupdict(), "query": query}, sent)
                return json.dumps(result).encode(), {"Content-Type": "application/json"}
        raise Refusal(404)

    def reply(self, status: int, content: bytes, headers: dict[str, str], keep: int = -1) -> None:
        self.hub.log.append((self.command, self.path, status))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if keep < 0 else content[:keep])


@contextmanager
def serve() -> Iterator[Hub]:
    """A running double."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(hub: Hub, home: Path) -> dict[str, str]:
    """Variables that point a fresh process at the double, with a cache of its own."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The double, with this process's Hub client pointed at it and an empty cache."""
    with serve() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(transformers_hub, "_hf_api", None, raising=False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running
