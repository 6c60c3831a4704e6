"""Images of others can be named by digest, and README.md says how."""

from __future__ import annotations

import re

import yaml

from tests.docker.chroot_build import DOCKERFILE, read_stages
from tests.docker.files import DOCKER, interpolated
from tests.docker.test_compose import TEXT, VARIABLES

DIGEST = "@sha256:" + 64 * "0"
README = (DOCKER / "README.md").read_text(encoding="utf-8")
TAGGED = dict(re.findall(r"(\w+_IMAGE)=([\w./-]+:[\w.-]+)", README))  # as its loop lists them
PINNED = {name: image + DIGEST for name, image in TAGGED.items()}


def foreign_images(variables: dict[str, str]) -> set[str]:
    """What is pulled: the bases that are no stages, and the services that are not built here."""
    stages = read_stages(DOCKERFILE.read_text(encoding="utf-8"), variables)
    services = yaml.safe_load(interpolated(TEXT, VARIABLES | variables))["services"].values()
    return {stage.base for stage in stages.values() if stage.base not in stages} | {
        service["image"] for service in services if "build" not in service
    }


def test_readme_lists_every_image_that_is_pulled_with_its_tag() -> None:
    assert foreign_images({}) == {*TAGGED.values()}


def test_every_image_that_is_pulled_can_be_given_by_digest() -> None:
    assert foreign_images(PINNED) == {*PINNED.values()}


def test_compose_passes_the_base_on_to_the_build() -> None:
    server = yaml.safe_load(interpolated(TEXT, VARIABLES))["services"]["server"]
    assert server["build"]["args"] == ["BASE_IMAGE"]
