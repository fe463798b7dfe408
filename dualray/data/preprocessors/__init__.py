"""Preprocessors: steps that learn numbers of a dataset with `fit`, and then change columns of datasets and batches.

    from dualray.data.preprocessors import StandardScaler

    scaled = StandardScaler(columns=["x"]).fit_transform(data)

The names are those of Ray Data. Each needs pandas, of `pip install 'dualray[data]'`. See docs/data.md.
"""

from dualray.data.preprocessors.columns import Chain, Concatenator, SimpleImputer
from dualray.data.preprocessors.discretizers import CustomKBinsDiscretizer, UniformKBinsDiscretizer
from dualray.data.preprocessors.encoders import (
    Categorizer,
    LabelEncoder,
    MultiHotEncoder,
    OneHotEncoder,
    OrdinalEncoder,
)
from dualray.data.preprocessors.preprocessor import Preprocessor, PreprocessorNotFittedException
from dualray.data.preprocessors.scalers import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from dualray.data.preprocessors.texts import CountVectorizer, FeatureHasher, HashingVectorizer, Tokenizer

__all__ = [
    "Categorizer",
    "Chain",
    "Concatenator",
    "CountVectorizer",
    "CustomKBinsDiscretizer",
    "FeatureHasher",
    "HashingVectorizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiHotEncoder",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PowerTransformer",
    "Preprocessor",
    "PreprocessorNotFittedException",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "Tokenizer",
    "UniformKBinsDiscretizer",
]
