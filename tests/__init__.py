"""The tests. A process that one of them starts makes the manifests that it makes."""

from tests.support.manifests import follow_the_environment

follow_the_environment()
