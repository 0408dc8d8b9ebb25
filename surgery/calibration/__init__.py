"""The texts that GPTQ calibrates with: chosen by share, rendered by the model's own template, joined to sequences.

wanted = calibration_of(read_recipe(path)["calibration"], path)
built = build_calibration(wanted, model)
oneshot(..., dataset=as_dataset(built.sequences), num_calibration_samples=len(built.sequences))
"""

from surgery.calibration.build import build_calibration
from surgery.calibration.dataset import CalibrationSet, as_dataset, rows_of
from surgery.calibration.recipe import Calibration, SourceSpec, calibration_of, read_recipe, recipe_path
from surgery.calibration.report import Report, Split
from surgery.calibration.setfile import read_set, write_set

__all__ = [
    "Calibration",
    "CalibrationSet",
    "Report",
    "SourceSpec",
    "Split",
    "as_dataset",
    "build_calibration",
    "calibration_of",
    "read_recipe",
    "read_set",
    "recipe_path",
    "rows_of",
    "write_set",
]
