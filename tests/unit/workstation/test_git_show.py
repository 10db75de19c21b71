# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_show on repositories that git has made."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, NotFound
from mcpd.servers.workstation.git.log import SHOW, ShowResult
from tests.unit.workstation.git_parts import AUTHOR, EMAIL, TIME, MadeRepository

if TYPE_CHECKING:
    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process


async def show(bench: Workbench, **arguments: Any) -> ShowResult:
    return cast("ShowResult", (await bench.call(SHOW, **arguments)).result)


PATCH = "diff --git a/file b/file\nindex e69de29..d00491f 100644\n--- a/file\n+++ b/file\n@@ -0,0 +1 @@\n+1\n"


async def test_a_commit(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": ""})
    commit = repository.commit("Subject\n\nBody", {"file": "1\n"})
    answer = await bench.call(SHOW)
    found = cast("ShowResult", answer.result)
    assert (found.kind, found.object, found.patch, found.truncated) == ("commit", commit, PATCH, False)
    assert found.commit is not None
    assert (found.commit.subject, found.commit.body) == ("Subject", "Body")
    assert [each.path for each in found.files or []] == ["file"]
    assert (found.added, found.removed, found.tag) == (1, 0, None)
    head = f"commit {commit} (HEAD -> main)\nAuthor: {AUTHOR} <{EMAIL}>\nDate:   {TIME}\n"
    assert answer.content[0]["text"] == f"{head}\n    Subject\n\n    Body\n\n{PATCH}"


async def test_the_first_commit_is_compared_with_nothing(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    repository.git("config", "log.showRoot", "false")
    found = await show(bench)
    assert [(each.path, each.status) for each in found.files or []] == [("file", "added")]


async def test_a_repository_with_longer_ids(bench: Workbench) -> None:
    repository = MadeRepository.make(bench.root, "--object-format=sha256")
    commit = repository.commit(files={"file": "1\n"})
    found = await show(bench)
    assert (len(commit), found.object, found.added) == (64, commit, 1)


async def test_a_merge_is_compared_with_its_first_parent(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit()
    repository.git("checkout", "--quiet", "-b", "side")
    repository.commit(files={"side": "1\n"})
    repository.git("checkout", "--quiet", "main")
    repository.commit(files={"main": "1\n"})
    repository.git("merge", "--quiet", "--no-edit", "side")
    assert [each.path for each in (await show(bench)).files or []] == ["side"]


async def test_parts_of_a_commit(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"a/x": "1\n", "b/x": "1\n"})
    assert [each.path for each in (await show(bench, paths=["b"])).files or []] == ["b/x"]
    found = await show(bench, stat=True)
    assert (found.patch, found.added) == (None, 2)
    cut = await show(bench, max_bytes=50)
    assert cut.truncated
    assert len(cut.patch or "") <= 50


async def test_an_annotated_tag(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit("one")
    repository.git("tag", "-m", "About v1\n\nand more", "v1")
    repository.git("tag", "-m", "A tag of a tag", "v1-again", "v1")
    answer = await bench.call(SHOW, revision="v1")
    found = cast("ShowResult", answer.result)
    assert found.tag is not None
    assert found.tag.model_dump() == {
        "name": "v1",
        "tagger": AUTHOR,
        "tagger_email": EMAIL,
        "date": TIME,
        "message": "About v1\n\nand more",
    }
    assert (found.kind, found.object) == ("commit", commit)
    assert answer.content[0]["text"].startswith(f"tag v1\nTagger: {AUTHOR} <{EMAIL}>\nDate:   {TIME}\n\nAbout v1\n")
    again = await show(bench, revision="v1-again")
    assert (again.object, again.tag and again.tag.message) == (commit, "A tag of a tag")


async def test_the_signature_of_a_tag_is_left_out(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit("one")
    tag = (
        f"object {commit}\ntype commit\ntag signed\ntagger A <a@b> 99999999999999999 +9999\n\nAbout it\n"
        "-----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----\n"
    )
    made = repository.git("hash-object", "-t", "tag", "-w", "--stdin", "--literally", stdin=tag.encode())
    found = (await show(bench, revision=made)).tag
    assert found is not None
    assert (found.message, found.date) == ("About it", "1970-01-01T00:00:00+00:00")


async def test_a_file_of_a_commit(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"d/file": "ö\r\n2"})
    repository.commit(files={"d/file": "other\n"})
    answer = await bench.call(SHOW, revision="HEAD~:d/file")
    found = answer.result.model_dump(exclude_none=True)
    blob = repository.head("HEAD~:d/file")
    assert found == {"repository": str(bench.root), "kind": "file", "object": blob, "size": 5, "text": "ö\r\n2"}
    assert answer.content == ({"type": "text", "text": "ö\r\n2"},)


async def test_a_file_that_is_no_text(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"nul": b"a\0b", "latin": b"\xe9", "empty": b""})
    for name, content in (("nul", b"a\0b"), ("latin", b"\xe9")):
        answer = await bench.call(SHOW, revision=f"HEAD:{name}")
        found = cast("ShowResult", answer.result)
        assert (found.text, found.base64) == (None, base64.b64encode(content).decode())
        assert answer.content[0]["resource"]["blob"] == found.base64
    assert (await show(bench, revision="HEAD:empty")).text == ""


async def test_a_large_file_is_cut_but_no_character_of_it(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "ö" * 100_000})
    found = await show(bench, revision="HEAD:file", max_bytes=1001)
    assert (found.text, found.size, found.truncated) == ("ö" * 500, 200_000, True)


async def test_a_directory_of_a_commit(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"d/file": "12\n", "d/sub/x": "", os.fsdecode(b"d/\xff"): "", "d/run": ""})
    (bench.root / "d/run").chmod(0o755)
    (bench.root / "d/link").symlink_to("file")
    repository.commit()
    answer = await bench.call(SHOW, revision="HEAD:d")
    found = cast("ShowResult", answer.result)
    assert (found.kind, found.truncated) == ("directory", None)
    assert {each.name: (each.type, each.mode, each.size) for each in found.entries or []} == {
        "file": ("file", "100644", 3),
        "link": ("symlink", "120000", 4),
        "run": ("file", "100755", 0),
        "sub": ("directory", "040000", None),
        "\ufffd": ("file", "100644", 0),
    }
    assert "sub/\n" in answer.content[0]["text"]
    assert {each.name for each in (await show(bench, revision="HEAD:")).entries or []} == {"d"}


async def test_a_directory_larger_than_an_answer(bench: Workbench, repository: MadeRepository) -> None:
    blob = repository.git("hash-object", "-w", "--stdin")
    entries = "".join(f"100644 blob {blob}\t{number:05}{'x' * 200}\0" for number in range(20_000))
    tree = repository.git("mktree", "-z", stdin=entries.encode())
    found = await show(bench, revision=tree)
    assert (len(found.entries or []), found.truncated) == (1000, True)


async def test_the_index_and_a_bare_repository(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    repository.write("file", "2\n")
    repository.git("add", "file")
    assert (await show(bench, revision=":file")).text == "2\n"
    repository.git("clone", "--quiet", "--bare", ".", "bare.git")
    assert (await show(bench, path="bare.git", revision="HEAD:file")).text == "1\n"
    assert (await show(bench, path="bare.git")).kind == "commit"


async def test_a_symlink_is_shown_not_followed(bench: Workbench, repository: MadeRepository) -> None:
    (bench.root / "link").symlink_to(bench.outside / "secret")
    repository.commit()
    assert (await show(bench, revision="HEAD:link")).text == str(bench.outside / "secret")


@pytest.mark.parametrize("revision", ["nowhere", "HEAD:none", "HEAD..HEAD", "--all", "-p"])
async def test_what_is_not_there(bench: Workbench, repository: MadeRepository, revision: str) -> None:
    repository.commit(files={"file": "1\n"})
    with pytest.raises(NotFound, match="names nothing"):
        await show(bench, revision=revision)


@pytest.mark.parametrize("revision", ["HEAD:../outside/secret", "@{upstream}", "a\0b"])
async def test_what_is_no_revision(bench: Workbench, repository: MadeRepository, revision: str) -> None:
    repository.commit(files={"file": "1\n"})
    with pytest.raises(InvalidArgument):
        await show(bench, revision=revision)


async def test_a_repository_without_any_commit(bench: Workbench, repository: MadeRepository) -> None:
    with pytest.raises(NotFound, match="nothing has been committed"):
        await show(bench)


async def test_paths_are_for_commits(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    with pytest.raises(InvalidArgument, match="commits"):
        await show(bench, revision="HEAD:file", paths=["file"])


async def test_the_repository_runs_nothing(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n", ".gitattributes": "file diff=evil filter=evil\n"})
    for key in ("diff.evil.textconv", "diff.evil.command", "diff.external", "filter.evil.smudge", "gpg.program"):
        repository.git("config", key, f"touch {bench.root}/ran; cat")
    repository.git("config", "log.showSignature", "true")
    assert (await show(bench)).added == 2
    assert (await show(bench, revision="HEAD:file")).text == "1\n"
    assert not (bench.root / "ran").exists()


@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode())))
async def test_a_file_comes_back_as_it_was(bench: Workbench, repository: MadeRepository, content: bytes) -> None:
    blob = repository.git("hash-object", "-w", "--stdin", stdin=content)
    found = await show(bench, revision=blob)
    said = found.text.encode() if found.text is not None else base64.b64decode(found.base64 or "")
    assert (said, found.size) == (content, len(content))
