"""Files that were written for Ray, read as groups of nodes. The amounts are those that Ray 2.60 takes of the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualray.shared.scenario.file import ScenarioError, parse_growth, parse_scenario

KUBERAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: complete, namespace: default}
spec:
  rayVersion: '2.60.0'
  enableInTreeAutoscaling: true
  autoscalerOptions: {upscalingMode: Conservative, idleTimeoutSeconds: 90, imagePullPolicy: Always}
  headGroupSpec:
    rayStartParams: {num-cpus: "0", dashboard-host: '0.0.0.0'}
    template:
      spec:
        containers:
        - {name: head, image: rayproject/ray, resources: {limits: {cpu: 1, memory: 2Gi}, requests: {cpu: 500m}}}
  workerGroupSpecs:
  - groupName: small
    replicas: 1
    minReplicas: 1
    maxReplicas: 5
    rayStartParams: {}
    template:
      spec:
        containers:
        - {name: worker, resources: {limits: {cpu: "1500m", memory: 4Gi}}}
  - groupName: gpu
    replicas: 0
    minReplicas: 0
    maxReplicas: 2
    numOfHosts: 2
    idleTimeoutSeconds: 10
    labels: {market: spot}
    rayStartParams: {resources: '"{\\\\"disk\\\\": 2}"', object-store-memory: "1000000000"}
    template:
      spec:
        containers:
        - {name: worker, resources: {limits: {nvidia.com/gpu: 4}, requests: {cpu: 8, memory: 16G}}}
"""

RAY_UP = """
cluster_name: classic
max_workers: 8
upscaling_speed: 0.5
idle_timeout_minutes: 2
provider: {type: aws, region: us-west-2}
available_node_types:
  head: {resources: {CPU: 2}, node_config: {InstanceType: m5.large}, max_workers: 0}
  worker:
    resources: {CPU: 8, GPU: 1, memory: 1000000000, disk: 3}
    min_workers: 1
    max_workers: 6
    labels: {zone: a}
    node_config: {InstanceType: g4dn.2xlarge}
head_node_type: head
"""


def test_a_raycluster_of_kuberay_is_read_as_groups() -> None:
    growth = parse_growth(KUBERAY, "raycluster.yaml")
    small, gpu = growth.cluster.scaling_specs()
    assert (small.name, small.least, small.most) == ("small", 1, 5)
    assert small.total.as_floats() == {"CPU": 2, "memory": 4 * 1024**3}
    assert (gpu.name, gpu.least, gpu.most) == ("gpu", 0, 4), "two hosts for each replica"
    assert gpu.total.as_floats() == {"CPU": 8, "GPU": 4, "memory": 16e9, "disk": 2}
    assert dict(gpu.labels) == {"market": "spot", "ray.io/node-group": "gpu"}
    assert growth.cluster.scaled()["gpu"].object_store == 10**9
    (_, head), _ = growth.cluster.each_node()
    assert head.total.as_floats() == {"memory": 2 * 1024**3}
    assert growth.config == {"idle_timeout_ns": 90 * 10**9, "upscaling_speed_percent": 100}
    assert growth.name == "complete"
    assert growth.cluster.ignored == (
        "spec.rayVersion",
        "spec.enableInTreeAutoscaling",
        "spec.workerGroupSpecs[1].idleTimeoutSeconds",
        "spec.headGroupSpec.rayStartParams.dashboard-host",
        "spec.autoscalerOptions.imagePullPolicy",
    )


def test_a_cluster_yaml_of_ray_up_is_read_as_groups() -> None:
    growth = parse_growth(RAY_UP, "cluster.yaml")
    (worker,) = growth.cluster.scaling_specs()
    assert (worker.name, worker.least, worker.most) == ("worker", 1, 6)
    assert worker.total.as_floats() == {"CPU": 8, "GPU": 1, "memory": 1e9, "disk": 3}
    assert growth.config == {"idle_timeout_ns": 120 * 10**9, "upscaling_speed_percent": 50}
    assert growth.cluster.ignored == (
        "provider",
        "available_node_types.head.node_config",
        "available_node_types.worker.node_config",
    )
    few = parse_growth(RAY_UP.replace("max_workers: 8", "max_workers: 3"), "cluster.yaml")
    assert few.cluster.scaling["worker"].max == 3
    types = RAY_UP.replace("max_workers: 8", "max_workers: 3").replace(
        "  head: {", "  more: {resources: {CPU: 1}, max_workers: 2}\n  head: {"
    )
    both = parse_growth(types, "cluster.yaml")
    assert {name: group.max for name, group in both.cluster.scaling.items()} == {"worker": 3, "more": 2}
    assert "max_workers" in both.cluster.ignored, "it is the limit of each, and not of all together"


@pytest.mark.parametrize(
    ("old", "new", "least", "most"),
    [
        ("    maxReplicas: 5\n", "", 1, 10_000),
        ("    maxReplicas: 5\n", "    maxReplicas: 2147483647\n", 1, 10_000),
        ("    maxReplicas: 5\n", "    maxReplicas: 5\n    suspend: true\n", 0, 0),
        ("    minReplicas: 1\n    maxReplicas: 5\n", "    minReplicas: 0\n    maxReplicas: 0\n", 0, 0),
    ],
)
def test_how_many_replicas_kuberay_allows(old: str, new: str, least: int, most: int) -> None:
    assert KUBERAY.count(old) == 1
    small = parse_growth(KUBERAY.replace(old, new), "raycluster.yaml").cluster.scaling["small"]
    assert (small.min, small.max) == (least, most)


@pytest.mark.parametrize(("kind", "key"), [("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")])
def test_a_cluster_within_another_kind_is_read(kind: str, key: str) -> None:
    before, spec = KUBERAY.replace("kind: RayCluster", f"kind: {kind}").split("spec:\n", 1)
    inner = "".join(f"  {line}\n" for line in spec.splitlines())
    growth = parse_growth(f"{before}spec:\n  {key}:\n{inner}", "job.yaml")
    assert growth.cluster.scaling == parse_growth(KUBERAY, "raycluster.yaml").cluster.scaling
    assert f"spec.{key}.rayVersion" in growth.cluster.ignored
    with pytest.raises(ScenarioError, match=rf"spec\.{key}\.headGroupSpec: must be a mapping"):
        parse_growth(f"{before}spec:\n  {key}:\n{inner}".replace("headGroupSpec", "head"), "job.yaml")


def test_of_several_documents_the_raycluster_is_read() -> None:
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n"
    assert parse_growth(other + KUBERAY, "all.yaml").cluster == parse_growth(KUBERAY, "raycluster.yaml").cluster
    with pytest.raises(ScenarioError, match="of which 2 are a RayCluster; keep only one RayCluster"):
        parse_growth(f"{KUBERAY}\n---\n{KUBERAY}", "all.yaml")


SCENARIO = """
name: priced
cluster: {from: raycluster.yaml, groups: {gpu: {price: 2.8, start_up: 3m}}}
workload: {function: a:b}
config: {idle_timeout_ns: 1000000000}
"""


def test_a_scenario_takes_its_groups_from_such_a_file_and_says_more_of_them() -> None:
    files = {"raycluster.yaml": KUBERAY}
    scenario = parse_scenario(SCENARIO, "priced.yaml", files.__getitem__)
    assert scenario.cluster.scaling["gpu"].price == 2.8
    assert scenario.cluster.scaling["gpu"].max == 4
    assert scenario.cluster.scaling["small"].max == 5
    assert scenario.config == {"idle_timeout_ns": 10**9, "upscaling_speed_percent": 100}
    assert "spec.rayVersion" in scenario.cluster.ignored


def read_nothing(name: str) -> str:
    raise ValueError(f"there is no {name}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minReplicas: 1", "minReplicas: many", "spec.workerGroupSpecs[0].minReplicas: 'many' must be a whole number"),
        (
            "    maxReplicas: 5\n",
            "    maxReplicas: all\n",
            "spec.workerGroupSpecs[0].maxReplicas: 'all' must be a whole",
        ),
        (
            "kind: RayCluster",
            "kind: Pod",
            "kind: 'Pod' has no groups of nodes: give a RayCluster, a RayJob or a RayServ",
        ),
        (
            "groupName: small",
            "groupName: {{ .Values.name }}",
            ": the file is a template: first replace each part between {{ and }}",
        ),
        ('cpu: "1500m", ', "", "spec.workerGroupSpecs[0].template: the number of CPUs of a node is missing"),
        ("memory: 4Gi", "memory: 4Gx", "spec.workerGroupSpecs[0].memory: '4Gx' must be an amount, such as"),
        ("  - groupName: small\n    replicas", "  - replicas", "spec.workerGroupSpecs[0]: needs a groupName"),
        ("  headGroupSpec:", "  head:", "spec.headGroupSpec: must be a mapping"),
        ('\'"{\\\\"disk\\\\": 2}"\'', "disk", "rayStartParams.resources: 'disk' must be JSON"),
        (
            "minReplicas: 1",
            "minReplicas: 7",
            "spec.workerGroupSpecs[0].maxReplicas: 5 must not be less than minReplicas: 7",
        ),
    ],
)
def test_what_is_wrong_in_a_raycluster_is_said(old: str, new: str, message: str) -> None:
    assert old in KUBERAY
    with pytest.raises(ScenarioError) as wrong:
        parse_growth(KUBERAY.replace(old, new), "raycluster.yaml")
    assert str(wrong.value).startswith("raycluster.yaml:")
    assert message in str(wrong.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "head_node_type: head",
            "head_node_type: boss",
            "head_node_type: 'boss' must be one of available_node_types",
        ),
        (
            "{CPU: 8, GPU: 1,",
            "{GPU: 1,",
            "worker.resources: the number of CPUs of a node is missing, and dualray does not ask a cloud",
        ),
        ("max_workers: 6", "max_workers: 0", "at least one type must have max_workers above 0"),
        ("upscaling_speed: 0.5", "upscaling_speed: fast", "upscaling_speed: 'fast' must be a number of 0 or more"),
    ],
)
def test_what_is_wrong_in_a_cluster_yaml_is_said(old: str, new: str, message: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        parse_growth(RAY_UP.replace(old, new), "cluster.yaml")
    assert message in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SCENARIO.replace("raycluster.yaml", "3"), "priced.yaml:3: cluster.from: 3 must be the name of a file"),
        (SCENARIO, "priced.yaml:3: cluster.from: there is no raycluster.yaml"),
    ],
)
def test_what_is_wrong_with_the_name_of_a_file_is_said(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        parse_scenario(text, "priced.yaml", read_nothing)
    assert str(wrong.value).startswith(message)
    with pytest.raises(ScenarioError, match="is neither a RayCluster"):
        parse_scenario(SCENARIO, "priced.yaml", lambda name: "a: 1")


def test_the_samples_are_read_from_files(tmp_path: Path) -> None:
    from dualray.real.cluster.launch import read_growth

    (tmp_path / "raycluster.yaml").write_text(KUBERAY)
    (tmp_path / "mine.yaml").write_text("cluster: {from: raycluster.yaml}\nprovider: {local: {nodes: 2}}\n")
    growth = read_growth(tmp_path / "mine.yaml")
    assert growth.provider.local is not None
    assert growth.limits["upscaling_speed_percent"] == 100
    (tmp_path / "mine.yaml").write_text("cluster: {from: other.yaml}\n")
    with pytest.raises(ValueError, match=r"mine.yaml:1: cluster.from: .*other.yaml: cannot be read"):
        read_growth(tmp_path / "mine.yaml")
