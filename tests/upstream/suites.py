"""The suites that are run, with where their sources are, what they need and which of their files use Ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

RAY: Final = "ray[default]==2.60.0"
"""The Ray that says which tests a suite is held to."""


@dataclass(frozen=True)
class Suite:
    """Tests of another project.

    `paths` are files or directories in the source, each run by a pytest of its own; `packages` what pip installs beside
    Ray and dualray; `roots` the directories of the source that Python imports from. `options` go to pytest, and
    `plugin` is a module of `plugins/` that pytest loads.
    """

    name: str
    source: str
    commit: str
    paths: tuple[str, ...]
    packages: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    plugin: str = ""
    environment: dict[str, str] = field(default_factory=dict)


_RAYS_FILES: Final = """
    actor actor_advanced actor_bounded_threads actor_cancel actor_failures actor_group actor_lifetime
    actor_lineage_reconstruction actor_out_of_order actor_pool actor_resources actor_retry_1 actor_retry_2 advanced
    advanced_2 advanced_3 advanced_5 advanced_6 advanced_7 annotations args async asyncio asyncio_cluster
    baseexceptionandgroup basic basic_2 basic_3 basic_4 basic_5 bundle_label_selector cancel concurrency_group failure
    failure_2 failure_3 failure_4 generators get_locations get_or_create_actor ids joblib label_scheduling list_actors
    list_actors_2 list_actors_3 list_actors_4 logging_2 memory_scheduling mini multi_node multi_node_2
    multinode_failures_2 multiprocessing multiprocessing_standalone namespace nested_task node_label_scheduling_strategy
    node_labels object_assign_owner object_manager placement_group placement_group_2 placement_group_3 placement_group_4
    placement_group_5 placement_group_failover placement_group_mini_integration queue ray_get ray_init ray_init_2
    reconstruction reconstruction_2 reference_counting reference_counting_2 runtime_context runtime_env_env_vars
    scheduling scheduling_2 serialization streaming_generator streaming_generator_2 streaming_generator_3
    streaming_generator_4 streaming_generator_backpressure streaming_generator_regression threaded_actor traceback
    unavailable_actors util_helpers wait
""".split()  # noqa: SIM905 - one line a name is not read

SUITES: Final = {
    suite.name: suite
    for suite in (
        Suite(
            "rays_core",
            "https://github.com/dayshah/ray",
            "8dcdff8f38",
            tuple(f"python/ray/tests/test_{name}.py" for name in _RAYS_FILES),
            packages=("pytest-asyncio", "pandas", "joblib", "scikit-learn"),
            options=("--noconftest", "-o", "asyncio_mode=auto", "--timeout", "60"),
            plugin="rays_fixtures",
        ),
        Suite(
            "evotorch",
            "https://github.com/nnaisense/evotorch",
            "cebcac4",
            ("tests",),
            packages=("torch==2.13.0", "gymnasium", "pandas", "packaging"),
            roots=("src",),
            options=("-o", "addopts=", "--timeout", "300"),
        ),
        Suite(
            "sktime",
            "https://github.com/sktime/sktime",
            "7bd7d1620c",
            (
                "sktime/utils/tests/test_parallel.py",
                "sktime/utils/tests/test_parallelize.py",
                "sktime/datatypes/tests/test_vectorize.py",
                "sktime/transformations/tests/test_base.py",
                "sktime/forecasting/base/tests/test_base.py",
                "sktime/forecasting/model_selection/tests/test_tune.py",
                "sktime/classification/model_evaluation/tests/test_evaluate.py",
                "sktime/regression/model_evaluation/tests/test_evaluate.py",
            ),
            packages=("pandas<3", "scikit-learn", "scikit-base", "packaging", "statsmodels"),
            options=("-o", "addopts=", "--timeout", "300"),
            plugin="sktime_with_ray",
        ),
        Suite(
            "vectorbt",
            "https://github.com/polakowo/vectorbt",
            "f989752",
            ("tests/test_base.py", "tests/test_generic.py"),
            packages=("vectorbt", "plotly<6"),  # it names charts that later ones have not
            options=("--timeout", "300"),
        ),
        Suite(
            "tianshou",
            "https://github.com/thu-ml/tianshou",
            "f2402056",
            ("test/base/test_env.py", "test/base/test_collector.py"),
            packages=(
                "torch==2.13.0",
                "deepdiff",
                "gymnasium",
                "h5py",
                "matplotlib",
                "numba",
                "overrides",
                "pandas",
                "pettingzoo",
                "sensai-utils",
                "tensorboard",
                "tqdm",
            ),
            options=(
                "--timeout",
                "300",
            ),
        ),
        Suite(
            "flwr",
            "https://github.com/adap/flower",
            "fdef7afb1d",
            (
                "framework/py/flwr/server/superlink/fleet/vce/backend/raybackend_test.py",
                "framework/py/flwr/server/superlink/fleet/vce/vce_api_test.py",
            ),
            packages=("flwr", "parameterized"),
            roots=("framework/py",),
            options=("-o", "addopts=", "--timeout", "300"),
        ),
        Suite(
            "modin",
            "https://github.com/modin-project/modin",
            "7ca200b08",
            (
                "modin/tests/test_partition_api.py",
                "modin/tests/test_executions_api.py",
                "modin/tests/core/storage_formats/pandas/test_internals.py",
                "modin/tests/pandas/dataframe/test_iter.py",
                "modin/tests/pandas/dataframe/test_pickle.py",
                "modin/tests/pandas/dataframe/test_udf.py",
                "modin/tests/pandas/test_repartition.py",
                "modin/tests/pandas/test_reshape.py",
            ),
            packages=(
                "pandas<2.4",
                "boto3",
                "fsspec",
                "lxml",
                "matplotlib",
                "numexpr",
                "packaging",
                "pyarrow",
                "requests",
                "s3fs",
            ),
            options=("-o", "addopts=", "--timeout", "300", "--execution", "PandasOnRay"),
        ),
        Suite(
            "fugue",
            "https://github.com/fugue-project/fugue",
            "91648b2",
            tuple(f"tests/fugue_ray/test_{name}.py" for name in ("dataframe", "execution_engine", "registry", "utils")),
            packages=(
                "fugue==0.9.1",
                "qpd==0.4.4",
                "triad==1.0.4",
                "antlr4-python3-runtime==4.11.1",
                "duckdb",
                "flask",
                "jinja2",
                "pandas<2.3",
                "polars",
                "pyarrow",
                "requests",
                "sqlglot",
            ),
            options=("-o", "addopts=", "--timeout", "200"),
        ),
        Suite(
            "xgboost_ray",
            "https://github.com/ray-project/xgboost_ray",
            "e904925",
            tuple(
                f"xgboost_ray/tests/test_{name}.py"
                for name in ("matrix", "end_to_end", "fault_tolerance", "data_source", "colocation", "sklearn_matrix")
            ),
            packages=("xgboost<2.1", "pandas<3", "numpy<2", "pyarrow<18", "wrapt", "parameterized", "scikit-learn<1.6"),
            options=("-o", "addopts=", "--timeout", "300"),
        ),
        Suite(
            "pydvl",
            "https://github.com/aai-institute/pyDVL",
            "aae7fa01",
            ("tests/parallel",),
            packages=("pyDVL==0.10.0", "pymemcache", "pytest-xdist", "numpy<2", "pandas<3"),
            roots=("src",),
            options=("-o", "addopts=", "-p", "cacheprovider", "--timeout", "300"),
        ),
    )
}
