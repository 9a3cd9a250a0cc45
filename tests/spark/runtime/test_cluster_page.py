"""What the page about clusters has people copy is known to Spark: its settings, and its model of Kubernetes."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from waterclock.spark.pipeline.file import PipelineFile

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "batching" / "run-on-a-cluster.md"
FENCED = re.compile(r'```(?:yaml|toml) title="(\S+)"\n(.*?)```', re.DOTALL)
SETTING = re.compile(r"(?<![\w.])spark\.[a-z][A-Za-z]*(?:\.[A-Za-z]+)+")
OF_KUBERNETES = re.compile(rb"spark\.kubernetes\.[A-Za-z.]+")
NOT_LISTED = {
    "spark.driver.bindAddress",
    "spark.driver.blockManager.port",
    "spark.python.daemon.module",
}
"""Settings of Spark's that its own list of documented settings leaves out."""
PIPELINE = """
[source]
url = "${FACTORY_URL}"
topic = "telemetry"
[batching]
window = "500ms"
[[output]]
what = "batches"
table = "batches"
[run]
checkpoint = "s3a://plant/checkpoints/press"
trigger = "5s"
"""


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return dict(FENCED.findall(PAGE.read_text()))


def test_the_settings_of_the_page_are_sparks(
    spark: SparkSession, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", "press-0")
    monkeypatch.setenv("FACTORY_URL", "postgresql+psycopg://factory@db/factory")
    path = tmp_path / "press.toml"
    path.write_text(files["press.toml"] + PIPELINE)
    settings = PipelineFile.read(path).spark
    assert len(tomllib.loads(files["press.toml"])["spark"]) == 5  # master, driver, executor, kubernetes, python
    jars = Path(pyspark.__file__).parent / "jars"
    (jar,) = jars.glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as archive:
        known = archive.read("org/apache/spark/deploy/k8s/Config$.class")
    of_kubernetes = {key.decode() for key in OF_KUBERNETES.findall(known)}
    jvm: Any = spark._jvm  # pyright: ignore[reportPrivateUsage]
    registered = jvm.org.apache.spark.internal.config.ConfigEntry
    for key in {*settings, *SETTING.findall(PAGE.read_text())} - {"spark.master"}:
        if key.startswith(
            ("spark.executorEnv.", "spark.hadoop.", "spark.kubernetes.executor.secretKeyRef.")
        ):  # any name may follow
            continue
        assert key in of_kubernetes or registered.findEntry(key) is not None or key in NOT_LISTED, key


def test_the_manifests_of_the_page_have_only_fields_that_kubernetes_has(
    spark: SparkSession, files: dict[str, str]
) -> None:
    jvm: Any = spark._jvm  # pyright: ignore[reportPrivateUsage]
    read = jvm.io.fabric8.kubernetes.client.utils.Serialization
    kinds: list[str] = []
    for text in files["press.yaml"].split("---\n"):
        document = read.unmarshal(text)
        kinds.append(document.getKind())
        nodes = [document, document.getMetadata()]
        if document.getKind() == "Deployment":
            spec = document.getSpec()
            pod = spec.getTemplate().getSpec()
            (container,) = pod.getContainers()
            (volume,) = pod.getVolumes()
            nodes += [spec, spec.getStrategy(), spec.getSelector(), spec.getTemplate(), pod, container, volume]
            nodes += [container.getResources(), volume.getConfigMap(), *container.getEnv(), *container.getPorts()]
            nodes += [*container.getVolumeMounts(), *[each.getValueFrom() for each in container.getEnv()]]
        elif document.getKind() == "Service":
            nodes += [document.getSpec(), *document.getSpec().getPorts()]
        elif document.getKind() == "Role":
            nodes += [*document.getRules()]
        elif document.getKind() == "RoleBinding":
            nodes += [document.getRoleRef(), *document.getSubjects()]
        for node in nodes:
            assert dict(node.getAdditionalProperties()) == {}, node.toString()
    assert kinds == ["ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"]
