"""What each library is asked: an import inside the function, as people write it in tasks, and a small result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["PROGRAMS"]


def numpy() -> object:
    import numpy as np

    return float(np.linalg.svd(np.arange(12.0).reshape(3, 4))[1].sum())


def scipy() -> object:
    from scipy import optimize, stats

    found: Any = optimize.minimize_scalar(lambda x: (x - 2) ** 2)
    return round(float(found.x), 6), round(float(stats.norm.cdf(1.0)), 6)


def pandas() -> object:
    import pandas as pd

    frame: Any = pd.DataFrame({"key": [1, 2, 1, 2], "value": [1.0, 2.0, 3.0, 4.0]})
    return frame.groupby("key").value.sum().tolist()


def pyarrow() -> object:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.sum(pa.table({"a": [1, 2, 3]})["a"]).as_py()


def polars() -> object:
    import polars as pl

    return pl.DataFrame({"a": [1, 2, 3], "b": [1, 1, 2]}).group_by("b").agg(pl.col("a").sum()).sort("b").rows()


def sklearn() -> object:
    from sklearn.ensemble import RandomForestClassifier

    rows = [[number % 7, number % 3] for number in range(60)]
    model: Any = RandomForestClassifier(n_estimators=5, random_state=0).fit(rows, [row[0] > 3 for row in rows])
    return float(model.score(rows, [row[0] > 3 for row in rows]))


def statsmodels() -> object:
    import numpy as np
    import statsmodels.api as sm

    x = np.arange(10.0)
    fitted: Any = sm.OLS(2 * x + 1, sm.add_constant(x)).fit()
    return [round(float(value), 6) for value in fitted.params]


def lightgbm() -> object:
    import lightgbm
    import numpy as np

    rows = np.arange(200.0).reshape(100, 2)
    parameters = {"verbose": -1, "num_threads": 1, "min_data_in_leaf": 2}
    model: Any = lightgbm.train(parameters, lightgbm.Dataset(rows, label=rows[:, 0] > 50), num_boost_round=3)
    return round(float(model.predict(rows).sum()), 4)


def xgboost() -> object:
    import numpy as np
    import xgboost

    rows = np.arange(200.0).reshape(100, 2)
    data: Any = xgboost.DMatrix(rows, label=(rows[:, 0] > 50).astype(float))
    model: Any = xgboost.train({"nthread": 1, "verbosity": 0}, data, num_boost_round=3)
    return round(float(model.predict(data).sum()), 3)


def numba() -> object:
    import numba as nb

    @nb.njit
    def total(limit: int) -> int:
        found = 0
        for number in range(limit):
            found += number
        return found

    return int(total(1000)), int(total(10))


def matplotlib() -> object:
    import io

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(1, 1))
    axes.plot([1, 2, 3])
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    plt.close(figure)
    return file.getvalue()[:4].hex()


def pillow() -> object:
    from PIL import Image

    return Image.new("RGB", (4, 4), "red").resize((2, 2)).tobytes().hex()


def networkx() -> object:
    import networkx as nx

    return nx.shortest_path(nx.cycle_graph(7), 0, 3)


def sqlalchemy() -> object:
    import sqlalchemy as sa

    engine: Any = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        return connection.execute(sa.text("select 1 + 2")).scalar()


def pydantic() -> object:
    import pydantic as pd

    class Point(pd.BaseModel):
        x: int

    return Point.model_validate({"x": "3"}).x


def requests() -> object:
    import requests as rq

    return rq.Request("GET", "http://host/path", params={"a": 1}).prepare().url


def aiohttp() -> object:
    from aiohttp import web

    return web.Response(text="hello").status


def sympy() -> object:
    import sympy as sp

    x: Any = sp.Symbol("x")
    return str(sp.integrate(x**2, x))


def joblib() -> object:
    from joblib import Parallel, delayed

    return Parallel(n_jobs=2, backend="threading")(delayed(pow)(number, 2) for number in range(5))


def dask() -> object:
    import dask as dk

    return dk.compute(dk.delayed(sum)([1, 2, 3]), scheduler="synchronous")[0]


def h5py() -> object:
    import h5py as h5

    with h5.File("memory.h5", "w", driver="core", backing_store=False) as file:
        file["x"] = [1, 2, 3]
        return [int(value) for value in file["x"][:]]


def zarr() -> object:
    import zarr as zr

    array: Any = zr.zeros((4,), dtype="i4")
    array[:] = 7
    return int(array[:].sum())


def duckdb() -> object:
    import duckdb as dd

    return dd.connect().execute("select sum(x) from range(5) t(x)").fetchall()


def tensorflow() -> object:
    import tensorflow as tf

    return float(tf.reduce_sum(tf.constant([1.0, 2.0])))


def jax() -> object:
    import jax.numpy as jnp

    return float(jnp.arange(4.0).sum())


def torch() -> object:
    import torch as th

    return float(th.arange(4.0).sum())


def cryptography() -> object:
    from cryptography.hazmat.primitives import hashes

    digest: Any = hashes.Hash(hashes.SHA256())
    digest.update(b"dualray")
    return digest.finalize().hex()


def lxml() -> object:
    from lxml import etree

    return [node.text for node in etree.fromstring("<a><b>1</b><b>2</b></a>").xpath("b")]


def httpx() -> object:
    import httpx as hx

    return str(hx.Request("GET", "http://localhost/", params={"a": "1"}).url)


def jinja2() -> object:
    import jinja2 as j2

    return j2.Template("{% for x in xs %}{{ x }},{% endfor %}").render(xs=range(3))


def fastapi() -> object:
    from fastapi import FastAPI

    app: Any = FastAPI()
    app.get("/a/{number}")(lambda number: number)
    return sorted(app.openapi()["paths"])


def xarray() -> object:
    import numpy as np
    import xarray as xr

    return float(xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("x", "y")).mean("y").sum())


def skimage() -> object:
    import numpy as np
    from skimage import filters

    image = np.zeros((16, 16))
    image[4:12, 4:12] = 1.0
    return round(float(filters.sobel(image).sum()), 6)


def opencv() -> object:
    import cv2
    import numpy as np

    return int(cv2.resize(np.full((8, 8), 7, dtype=np.uint8), (4, 4)).sum())


def shapely() -> object:
    from shapely.geometry import Point

    return round(float(Point(0, 0).buffer(1.0).intersection(Point(1, 0).buffer(1.0)).area), 6)


def gensim() -> object:
    from gensim.corpora import Dictionary

    return sorted(Dictionary([["a", "b"], ["b", "c"]]).token2id)


def spacy() -> object:
    import spacy as sp

    return [token.text for token in sp.blank("en")("Tasks, actors and objects.")]


def nltk() -> object:
    from nltk.stem import PorterStemmer

    return [PorterStemmer().stem(word) for word in ("running", "actors")]


def transformers() -> object:
    from transformers import BertConfig

    return BertConfig(hidden_size=24, num_attention_heads=2).to_dict()["hidden_size"]


PROGRAMS: dict[str, tuple[str, Callable[[], object]]] = {
    "numpy": ("numpy", numpy),
    "scipy": ("scipy", scipy),
    "pandas": ("pandas", pandas),
    "pyarrow": ("pyarrow", pyarrow),
    "polars": ("polars", polars),
    "scikit-learn": ("sklearn", sklearn),
    "statsmodels": ("statsmodels", statsmodels),
    "lightgbm": ("lightgbm", lightgbm),
    "xgboost": ("xgboost", xgboost),
    "numba": ("numba", numba),
    "matplotlib": ("matplotlib", matplotlib),
    "pillow": ("PIL", pillow),
    "networkx": ("networkx", networkx),
    "sqlalchemy": ("sqlalchemy", sqlalchemy),
    "pydantic": ("pydantic", pydantic),
    "requests": ("requests", requests),
    "aiohttp": ("aiohttp", aiohttp),
    "sympy": ("sympy", sympy),
    "joblib": ("joblib", joblib),
    "dask": ("dask", dask),
    "h5py": ("h5py", h5py),
    "zarr": ("zarr", zarr),
    "duckdb": ("duckdb", duckdb),
    "tensorflow": ("tensorflow", tensorflow),
    "jax": ("jax", jax),
    "torch": ("torch", torch),
    "cryptography": ("cryptography", cryptography),
    "lxml": ("lxml", lxml),
    "httpx": ("httpx", httpx),
    "jinja2": ("jinja2", jinja2),
    "fastapi": ("fastapi", fastapi),
    "xarray": ("xarray", xarray),
    "scikit-image": ("skimage", skimage),
    "opencv": ("cv2", opencv),
    "shapely": ("shapely", shapely),
    "gensim": ("gensim", gensim),
    "spacy": ("spacy", spacy),
    "nltk": ("nltk", nltk),
    "transformers": ("transformers", transformers),
}
"""By name: the module that says whether it is installed, and what is run."""
