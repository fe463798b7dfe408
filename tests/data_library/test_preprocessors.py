"""Preprocessors: the numbers that they learn, and what they make of columns."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dualray as ray
from dualray.data.preprocessors import (
    Categorizer,
    Chain,
    Concatenator,
    CountVectorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiHotEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    Preprocessor,
    PreprocessorNotFittedException,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    UniformKBinsDiscretizer,
)


def dataset(**columns: list[Any]) -> ray.data.Dataset:
    return ray.data.from_pandas(pd.DataFrame(columns)).repartition(2)


def column(data: ray.data.Dataset, name: str = "x") -> list[Any]:
    found = [row[name] for row in data.take_all()]
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in found]


@pytest.mark.parametrize(
    ("scaler", "values", "expected"),
    [
        (StandardScaler(["x"]), [1, 2, 3], [-np.sqrt(1.5), 0, np.sqrt(1.5)]),
        (StandardScaler(["x"]), [4, 4, 4], [0, 0, 0]),
        (MinMaxScaler(["x"]), [2, 4, 6], [0, 0.5, 1]),
        (MinMaxScaler(["x"]), [2, 2], [0, 0]),
        (MaxAbsScaler(["x"]), [-4, 2, 0], [-1, 0.5, 0]),
        (MaxAbsScaler(["x"]), [0, 0], [0, 0]),
        (RobustScaler(["x"]), [1, 2, 3, 4, 5], [-1, -0.5, 0, 0.5, 1]),
        (RobustScaler(["x"]), [1, 1], [0, 0]),
        (PowerTransformer(["x"], power=2), [0.0, 1.0, -1.0], [0, 1.5, -np.log(2)]),
        (PowerTransformer(["x"], power=0, method="box-cox"), [1.0, np.e], [0, 1]),
    ],
)
def test_scalers(scaler: Preprocessor, values: list[float], expected: list[float]):
    assert column(deepcopy(scaler).fit_transform(dataset(x=values))) == pytest.approx(expected)


@pytest.mark.parametrize(("norm", "expected"), [("l1", [3 / 7, -4 / 7]), ("l2", [0.6, -0.8]), ("max", [0.75, -1])])
def test_rows_are_normalized(norm: str, expected: list[float]):
    [row] = Normalizer(["x", "y"], norm).transform(dataset(x=[3.0], y=[-4.0])).take_all()
    assert [row["x"], row["y"]] == pytest.approx(expected)
    with pytest.raises(ValueError, match="Norm l3 is not supported"):
        Normalizer(["x"], "l3")


def test_output_columns_leave_the_others():
    [row] = MinMaxScaler(["x"], output_columns=["y"]).fit_transform(dataset(x=[5])).take_all()
    assert row == {"x": 5, "y": 0}
    with pytest.raises(ValueError, match="The length of columns and output_columns must match"):
        MinMaxScaler(["x"], output_columns=["y", "z"])


def test_ordinal_encoder():
    encoder = OrdinalEncoder(["x"]).fit(dataset(x=["b", "a", "c", "a"]))
    assert encoder.stats_ == {"unique_values(x)": {"a": 0, "b": 1, "c": 2}}
    assert column(encoder.transform(dataset(x=["c", "b"]))) == [2, 1]
    assert column(encoder.transform(dataset(x=["c", "unknown"])))[1] is None
    lists = dataset(x=[["a", "b"], ["c"]])
    assert column(OrdinalEncoder(["x"]).fit_transform(lists)) == [[0, 1], [2]]
    assert column(OrdinalEncoder(["x"], encode_lists=False).fit_transform(lists)) == [0, 1]


def test_one_hot_and_multi_hot_encoder():
    data = dataset(x=["b", "a", "b"])
    assert column(OneHotEncoder(["x"]).fit_transform(data)) == [[0, 1], [1, 0], [0, 1]]
    assert column(OneHotEncoder(["x"], max_categories={"x": 1}).fit_transform(data)) == [[1], [0], [1]]
    assert column(MultiHotEncoder(["x"]).fit_transform(dataset(x=[["a", "a"], ["b"]]))) == [[2, 0], [0, 1]]
    with pytest.raises(ValueError, match="You set `max_categories` for y, which is not present in"):
        OneHotEncoder(["x"], max_categories={"y": 1}).fit(data)


def test_label_encoder_and_back():
    data = dataset(x=["b", "a"])
    encoder = LabelEncoder("x", output_column="number")
    encoded = encoder.fit_transform(data)
    assert column(encoded, "number") == [1, 0]
    assert column(encoder.inverse_transform(encoded.drop_columns(["x"]))) == ["b", "a"]


def test_nulls_are_refused_by_encoders_and_filled_by_the_imputer():
    data = dataset(x=["a", None, "a", "b"], y=[1.0, None, 3.0, 2.0])
    with pytest.raises(ValueError, match=r"Unable to fit column because it contains null values.* is 'x'"):
        LabelEncoder("x").fit(data)
    assert column(SimpleImputer(["x"], "most_frequent").fit_transform(data)) == ["a", "a", "a", "b"]
    assert column(SimpleImputer(["y"]).fit_transform(data), "y") == [1, 2, 3, 2]
    assert column(SimpleImputer(["y"], "constant", 9).transform(data), "y") == [1, 9, 3, 2]
    with pytest.raises(ValueError, match="`fill_value` must be set"):
        SimpleImputer(["y"], "constant")


def test_categorizer():
    categorizer = Categorizer(["x"]).fit(dataset(x=["b", "a"]))
    assert categorizer.stats_ == {"x": pd.CategoricalDtype(["a", "b"])}
    assert categorizer.transform_batch(pd.DataFrame({"x": ["b", "a"]}))["x"].cat.codes.tolist() == [1, 0]


def test_discretizers():
    data = dataset(x=[0.0, 1.0, 2.0, 4.0])
    assert column(UniformKBinsDiscretizer(["x"], bins=2).fit_transform(data)) == [0, 0, 0, 1]
    assert column(CustomKBinsDiscretizer(["x"], bins=[-1, 0, 3, 4]).transform(data)) == [0, 1, 1, 2]
    names = {"x": pd.CategoricalDtype(["low", "high"], ordered=True)}
    discretizer = UniformKBinsDiscretizer(["x"], bins={"x": 2}, dtypes=names).fit(data)
    assert discretizer.transform_batch(pd.DataFrame({"x": [0.5, 3.0]}))["x"].tolist() == ["low", "high"]
    with pytest.raises(TypeError, match="`bins` must be an integer"):
        UniformKBinsDiscretizer(["x"], bins=2.5).fit(data)


def test_columns_are_joined_and_texts_are_split():
    joined = Concatenator(["x", "y"], dtype=np.float32).transform(dataset(x=[1], y=[2], z=["kept"])).take_all()
    assert [(row["z"], row["concat_out"].tolist()) for row in joined] == [("kept", [1, 2])]
    flat = Concatenator(["x", "y"], "all", flatten=True).transform(dataset(x=[1], y=[[2, 3]]))
    assert column(flat, "all") == [[1, 2, 3]]
    with pytest.raises(ValueError, match=r"Missing columns specified in .*'w'"):
        Concatenator(["x", "w"], raise_if_missing=True).transform(dataset(x=[1])).materialize()
    assert column(Tokenizer(["x"]).transform(dataset(x=["a b", "c"]))) == [["a", "b"], ["c"]]


def test_words_are_counted():
    texts = dataset(x=["a b a", "b c"])
    assert column(CountVectorizer(["x"]).fit_transform(texts)) == [[2, 1, 0], [0, 1, 1]]
    assert column(CountVectorizer(["x"], str.split, max_features=1).fit_transform(texts)) == [[2], [0]]
    hashed = column(HashingVectorizer(["x"], num_features=5).transform(texts))
    assert [sum(row) for row in hashed] == [3, 2] and {len(row) for row in hashed} == {5}
    counts = dataset(a=[2, 0], b=[1, 1])
    assert column(FeatureHasher(["a", "b"], num_features=1, output_column="x").transform(counts)) == [[3], [1]]
    [[*pair]] = column(FeatureHasher(["a", "b"], num_features=64, output_column="x").transform(counts.limit(1)))
    assert sorted(pair)[-2:] == [1, 2]


def test_a_chain_fits_each_on_what_the_one_before_made():
    chain = Chain(SimpleImputer(["x"]), StandardScaler(["x"]), Concatenator(["x"], "features"))
    assert chain.fit_status() == Preprocessor.FitStatus.NOT_FITTED
    expected = [-np.sqrt(1.5), 0, np.sqrt(1.5)]
    data = dataset(x=[1.0, None, 3.0])
    assert [each for [each] in column(chain.fit(data).transform(data), "features")] == pytest.approx(expected)
    assert chain.fit_status() == Preprocessor.FitStatus.FITTED
    batch = chain.transform_batch(pd.DataFrame({"x": [2.0]}))
    assert batch["features"].iloc[0].tolist() == [0]


@pytest.mark.parametrize("kind", [pd.DataFrame, pa.table, dict])
def test_batches_of_all_kinds_and_a_copy_that_was_serialized(kind: Any):
    scaler = MinMaxScaler(["x"])
    for refused in (scaler.transform, scaler.transform_batch):
        with pytest.raises(PreprocessorNotFittedException, match="`fit` must be called before"):
            refused(dataset(x=[1]))
    copy = Preprocessor.deserialize(scaler.fit(dataset(x=[0, 10])).serialize())
    given = kind({"x": np.array([5])})
    assert copy.transform_batch(given)["x"].tolist() == [0.5]
    assert np.asarray(given["x"]).tolist() == [5], "it stays as it is"
    with pytest.raises(ValueError, match="transform_batch takes a pandas DataFrame"):
        copy.transform_batch([1])


def test_one_of_your_own():
    class AddOne(Preprocessor):
        _is_fittable = False

        def _transform_numpy(self, np_data: Any) -> Any:
            return {name: values + 1 for name, values in np_data.items()}

    assert column(AddOne().transform(dataset(x=[1, 2]))) == [2, 3]


def test_which_of_two_methods_is_called():
    class Both(Preprocessor):
        _is_fittable = False

        def _transform_pandas(self, df: Any) -> Any:
            return df.assign(x="pandas")

        def _transform_numpy(self, np_data: Any) -> Any:
            return {"x": np.array([f"numpy, {len(np_data['x'])}"])}

        def _get_transform_config(self) -> dict[str, Any]:
            return {"batch_size": 2}

    class PrefersNumpy(Both):
        @classmethod
        def preferred_batch_format(cls) -> str:
            return "numpy"

    data = ray.data.from_items([{"x": 1}, {"x": 2}, {"x": 3}], override_num_blocks=1)
    assert column(Both().transform(data)) == ["pandas"] * 3
    assert column(PrefersNumpy().transform(data)) == ["numpy, 2", "numpy, 1"]
    assert column(PrefersNumpy().transform(data, batch_size=3)) == ["numpy, 3"]


def test_a_second_fit_warns_and_forgets_the_first():
    scaler = MinMaxScaler(["x"]).fit(dataset(x=[0, 1]))
    with pytest.warns(UserWarning, match="`fit` has already been called on the preprocessor"):
        scaler.fit(dataset(x=[0, 4]))
    assert scaler.stats_["max(x)"] == 4


def test_a_dataset_without_rows_teaches_nothing():
    with pytest.raises(ValueError, match="fit needs a dataset with rows"):
        MinMaxScaler(["x"]).fit(dataset(x=[1]).filter(lambda row: False))
