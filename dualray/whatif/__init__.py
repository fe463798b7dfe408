"""Predicts a recorded run on clusters that you do not have.

    from dualray import whatif

    trace = whatif.load("run.parquet")
    prediction = whatif.predict(trace, nodes=[1, 2, 4], cpus=[8])
    print(prediction.to_pandas())
    print(prediction.knee())
    print(prediction.cheapest("10min"))
    prediction.write_page("whatif.html")

`docs/tutorial_whatif.md` goes from a recorded run to a decision.
"""

from dualray.whatif.configurations import Configuration, configurations
from dualray.whatif.predict import Prediction, load, predict, what_would_help
from dualray.whatif.predicted import Row, Trace

__all__ = ["Configuration", "Prediction", "Row", "Trace", "configurations", "load", "predict", "what_would_help"]
